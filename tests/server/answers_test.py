"""Answers: the same text in every shape, and what the model's own library says of it."""
import http.client
import json
import os
import tempfile
import threading
import time

from serving import FACT, Server, ServerCase, chat_body, long_body, text_of

ANSWER = "Magnus owns a gray wolf. Magnus owns a gray wolf."


class Answers(ServerCase):
    def test_pages(self):
        self.assertEqual(self.server.request("GET", "/health")[2], '{"status":"ok"}')
        models = json.loads(self.server.request("GET", "/v1/models")[2])
        self.assertEqual([m["id"] for m in models["data"]], ["demo-q8_0"])
        self.assertEqual(json.loads(self.server.request("GET", "/v1/models/demo-q8_0")[2])["id"], "demo-q8_0")
        self.assertEqual(self.server.request("GET", "/v1/models/other")[0], 404)
        self.assertEqual(self.server.request("GET", "/elsewhere")[0], 404)
        status, head, _ = self.server.request("GET", "/v1/chat/completions")
        self.assertEqual((status, head["Allow"]), (405, "POST"))
        self.assertEqual(self.server.request("GET", "/v1/embeddings")[0], 405)

    def test_chat(self):
        status, answer = self.server.chat(model="demo-q8_0", user="u", metadata={}, store=False, n=1, stop=None, verbosity=None)
        self.assertEqual(status, 200, answer)
        self.assertEqual(answer["object"], "chat.completion")
        choice = answer["choices"][0]
        self.assertEqual(choice["message"]["role"], "assistant")
        self.assertEqual(choice["message"]["content"], ANSWER)
        self.assertEqual(choice["finish_reason"], "stop")
        usage = answer["usage"]
        self.assertGreater(usage["prompt_tokens"], 10)
        self.assertGreater(usage["completion_tokens"], 10)
        self.assertEqual(usage["total_tokens"], usage["prompt_tokens"] + usage["completion_tokens"])

    def test_content_in_parts(self):
        _, answer = self.server.chat([{"type": "text", "text": "Magnus owns a gray wolf. "}, {"type": "text", "text": "What animal does Magnus own?"}])
        self.assertIn("gray wolf", answer["choices"][0]["message"]["content"])

    def test_stream(self):
        chunks = self.server.stream("/v1/chat/completions", chat_body(stream_options={"include_usage": True}))
        self.assertEqual(chunks[-1], "[DONE]")
        self.assertEqual(chunks[0]["choices"][0]["delta"]["role"], "assistant")
        self.assertEqual(text_of(chunks), ANSWER)
        self.assertEqual(chunks[-3]["choices"][0]["finish_reason"], "stop")
        self.assertEqual(chunks[-2]["choices"], [])
        self.assertEqual(chunks[-2]["usage"]["completion_tokens"], self.server.chat()[1]["usage"]["completion_tokens"])
        self.assertEqual(len({c["id"] for c in chunks[:-1]}), 1)
        self.assertGreater(len(chunks), 10)
        self.assertFalse(any("usage" in c for c in self.server.stream("/v1/chat/completions", chat_body())[:-1]))

    def test_seed(self):
        def say(seed):
            return self.server.chat("Tell me something.", temperature=1.5, seed=seed, max_tokens=20)[1]["choices"][0]["message"]["content"]

        self.assertEqual(say(7), say(7))
        self.assertGreater(len({say(seed) for seed in range(5)}), 1)

    def test_length_and_stop(self):
        _, answer = self.server.chat(max_tokens=3)
        self.assertEqual((answer["choices"][0]["finish_reason"], answer["usage"]["completion_tokens"]), ("length", 3))
        self.assertEqual(self.server.chat(max_completion_tokens=3)[1]["choices"][0]["message"]["content"], answer["choices"][0]["message"]["content"])
        _, answer = self.server.chat(stop=" gray")
        self.assertEqual((answer["choices"][0]["finish_reason"], answer["choices"][0]["message"]["content"]), ("stop", "Magnus owns a"))
        chunks = self.server.stream("/v1/chat/completions", chat_body(stop=["zebra", " gray"]))
        self.assertEqual(text_of(chunks), "Magnus owns a")

    def test_logprobs(self):
        _, answer = self.server.chat(logprobs=True, top_logprobs=3)
        tokens = answer["choices"][0]["logprobs"]["content"]
        self.assertEqual(b"".join(bytes(t["bytes"]) for t in tokens).decode(), ANSWER)
        for token in tokens:
            self.assertLessEqual(token["logprob"], 0)
            self.assertEqual(len(token["top_logprobs"]), 3)
            self.assertEqual(token["top_logprobs"][0]["token"], token["token"])  # greedy
            ranks = [t["logprob"] for t in token["top_logprobs"]]
            self.assertEqual(ranks, sorted(ranks, reverse=True))
        chunks = self.server.stream("/v1/chat/completions", chat_body(logprobs=True, top_logprobs=3))
        streamed = [t for c in chunks[:-1] for t in (c["choices"][0]["logprobs"] or {"content": []})["content"]]
        self.assertEqual([t["token"] for t in streamed], [t["token"] for t in tokens])
        # A stop string is not part of the answer, nor are its tokens.
        _, answer = self.server.chat(logprobs=True, stop=" gray")
        self.assertEqual("".join(t["token"] for t in answer["choices"][0]["logprobs"]["content"]), "Magnus owns a")
        self.assertIsNone(self.server.chat()[1]["choices"][0]["logprobs"])

    def test_continue(self):
        talk = [{"role": "user", "content": FACT}, {"role": "assistant", "content": "Magnus owns a"}]
        status, answer = self.server.chat(messages=talk, continue_final_message=True, max_tokens=2)
        self.assertEqual((status, answer["choices"][0]["message"]["content"]), (200, " gray wolf"), answer)
        status, answer = self.server.chat(messages=talk[:1], continue_final_message=True)
        self.assertEqual(status, 400, answer)

    def test_completions(self):
        status, answer = self.server.post("/v1/completions", {"prompt": "Magnus owns a", "max_tokens": 6, "temperature": 0, "logprobs": 2})
        self.assertEqual(status, 200, answer)
        choice = answer["choices"][0]
        self.assertEqual((answer["object"], choice["finish_reason"]), ("text_completion", "length"))
        marks = choice["logprobs"]
        self.assertEqual("".join(marks["tokens"]), choice["text"])
        self.assertEqual([len(marks[name]) for name in ("tokens", "token_logprobs", "top_logprobs", "text_offset")], [6] * 4)
        self.assertEqual(marks["text_offset"][1], len(marks["tokens"][0]))
        chunks = self.server.stream("/v1/completions", {"prompt": ["Magnus owns a"], "max_tokens": 6, "temperature": 0})
        self.assertEqual("".join(c["choices"][0]["text"] for c in chunks[:-1]), choice["text"])
        status, answer = self.server.post("/v1/completions", {"prompt": [40, 41, 42], "max_tokens": 2, "temperature": 0})
        self.assertEqual((status, answer["usage"]["prompt_tokens"]), (200, 3))
        self.refused("prompt", {"prompt": [40, 1 << 30]}, "/v1/completions")

    def test_bias(self):
        body = {"prompt": "Magnus", "max_tokens": 4, "temperature": 0, "logprobs": 0}
        tokens = self.server.post("/v1/completions", dict(body, logit_bias={"77": 100}))[1]["choices"][0]["logprobs"]["tokens"]
        self.assertEqual(len(set(tokens)), 1)
        banned = self.server.post("/v1/completions", dict(body, logit_bias={"77": -100}))[1]["choices"][0]["logprobs"]["tokens"]
        self.assertNotIn(tokens[0], banned)
        self.refused("logit_bias", chat_body(logit_bias={"999999999": 1}))

    def test_schema(self):
        schema = {"type": "object", "properties": {"town": {"enum": ["Salem", "Oslo"]}, "people": {"type": "integer", "minimum": 1, "maximum": 9}},
                  "required": ["town", "people"], "additionalProperties": False}
        form = {"type": "json_schema", "json_schema": {"name": "town", "strict": True, "schema": schema}}
        for seed in range(3):
            _, answer = self.server.chat("Where does Bruno live?", response_format=form, temperature=1.5, seed=seed)
            value = json.loads(answer["choices"][0]["message"]["content"])
            self.assertEqual(list(value), ["town", "people"])
            self.assertIn(value["town"], ["Salem", "Oslo"])
            self.assertIn(value["people"], range(1, 10))
        chunks = self.server.stream("/v1/chat/completions", chat_body("Where does Bruno live?", response_format=form))
        self.assertIn(json.loads(text_of(chunks))["town"], ["Salem", "Oslo"])
        _, answer = self.server.chat("Say anything.", response_format={"type": "json_object"}, max_tokens=200)
        self.assertIsInstance(json.loads(answer["choices"][0]["message"]["content"]), dict)
        error = self.refused("response_format.json_schema.schema", chat_body(
            response_format={"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "nonsense"}}}))
        self.assertIn("nonsense", error["message"])

    def test_prefix(self):
        """The second turn of a conversation reuses the first, also when others come between; usage and metrics count the same tokens."""
        before = self.server.metrics()
        talks = [[{"role": "user", "content": "%s lives in Oslo and likes tea. " % who * 20 + "Where does %s live?" % who}] for who in ("Ada", "Bruno", "Chandra")]
        turns = []
        for _ in range(2):
            for talk in talks:
                answer = self.server.chat(messages=talk, max_tokens=20)[1]
                talk += [answer["choices"][0]["message"], {"role": "user", "content": "And what else?"}]
                turns.append(answer["usage"])
        for first, second in zip(turns, turns[3:]):
            self.assertGreaterEqual(second["prompt_tokens_details"]["cached_tokens"], first["total_tokens"] - 1)
        after = self.server.metrics()
        self.assertEqual(after["orrery_reused_tokens_total"] - before["orrery_reused_tokens_total"],
                         sum(usage["prompt_tokens_details"]["cached_tokens"] for usage in turns))

    def test_folder(self):
        """A server that begins again finds the prompts of the one before it, and answers the same."""
        with tempfile.TemporaryDirectory() as folder:
            asked = "Ada lives in Oslo and likes tea. " * 20 + FACT
            answers = []
            for _ in range(2):
                server = Server("--folder", folder, "--folder-bytes", "64MiB")
                answers.append(server.chat(asked, max_tokens=12, temperature=0)[1])
                self.assertEqual(server.stop(), 0)
                self.assertEqual(len(os.listdir(folder)), 1)
            first, second = (answer["usage"]["prompt_tokens_details"]["cached_tokens"] for answer in answers)
            self.assertEqual(first, 0)
            self.assertGreaterEqual(second, 64)
            self.assertEqual(answers[0]["choices"], answers[1]["choices"])

    def test_together(self):
        """Four answers at once are the four answers one by one, and none waits for another's end."""
        bodies = [long_body(prompt, max_tokens=600) for prompt in ("Magnus owns a", "A printer", "1 2 3 4", "A B C D")]
        alone = [self.server.post("/v1/completions", body)[1]["choices"][0] for body in bodies]
        self.assertEqual([choice["finish_reason"] for choice in alone], ["length"] * 4)
        texts, firsts, ends = [None] * 4, [0] * 4, [0] * 4
        gate = threading.Barrier(4)

        def ask(i):
            gate.wait()
            chunks = []
            connection = http.client.HTTPConnection("127.0.0.1", self.server.port, timeout=60)
            connection.request("POST", "/v1/completions", json.dumps(dict(bodies[i], stream=True)))
            response = connection.getresponse()
            while line := response.readline():
                if line.startswith(b"data: {"):
                    firsts[i] = firsts[i] or time.monotonic()
                    chunks.append(json.loads(line[6:]))
            ends[i] = time.monotonic()
            texts[i] = "".join(chunk["choices"][0]["text"] for chunk in chunks)
            connection.close()

        threads = [threading.Thread(target=ask, args=(i,)) for i in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(texts, [choice["text"] for choice in alone])
        self.assertLess(max(firsts), min(ends))
