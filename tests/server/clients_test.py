"""Published clients: PyPI's openai (chat, streams, tools, schemas, errors), PyPI's llm, curl. clients.sh runs it."""
import concurrent.futures
import json
import os
import subprocess
import sys
import tempfile
import unittest
from typing import Literal

import openai
from pydantic import BaseModel, ConfigDict

from serving import CALLING_TEMPLATE, FACT, Server

BIN = os.path.dirname(sys.executable)
MODEL = "demo-q8_0"
ASK = [{"role": "user", "content": FACT}]


class Place(BaseModel):
    model_config = ConfigDict(extra="forbid")
    town: Literal["Salem", "Oslo"]
    people: Literal[1, 2, 3]


class Clients(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        template = os.path.join(cls.folder.name, "calling.jinja")
        with open(template, "w") as file:
            file.write(CALLING_TEMPLATE)
        cls.server, cls.calling_server = Server("--queue", "300"), Server("--template", template)
        cls.url = "http://127.0.0.1:%d/v1" % cls.server.port
        cls.client = openai.OpenAI(base_url=cls.url, api_key="none", max_retries=0)
        cls.calling_client = openai.OpenAI(base_url="http://127.0.0.1:%d/v1" % cls.calling_server.port, api_key="none", max_retries=0)

    @classmethod
    def tearDownClass(cls):
        assert cls.server.stop() == 0 and cls.calling_server.stop() == 0
        cls.folder.cleanup()

    def test_chat(self):
        answer = self.client.chat.completions.create(model=MODEL, messages=ASK, temperature=0, logprobs=True, top_logprobs=2)
        self.assertIn("gray wolf", answer.choices[0].message.content)
        self.assertEqual("".join(t.token for t in answer.choices[0].logprobs.content), answer.choices[0].message.content)
        self.assertGreater(answer.usage.prompt_tokens, 10)
        self.assertEqual([m.id for m in self.client.models.list()], [MODEL])

    def test_stream(self):
        stream = self.client.chat.completions.create(model=MODEL, messages=ASK, temperature=0, stream=True, stream_options={"include_usage": True})
        chunks = list(stream)
        self.assertIn("gray wolf", "".join(c.choices[0].delta.content or "" for c in chunks if c.choices))
        self.assertGreater(chunks[-1].usage.completion_tokens, 3)
        with self.client.chat.completions.stream(model=MODEL, messages=ASK, temperature=0) as helper:
            for _ in helper:
                pass
            self.assertIn("gray wolf", helper.get_final_completion().choices[0].message.content)

    def test_stream_that_is_closed(self):
        stream = self.client.completions.create(model=MODEL, prompt="Magnus owns a", temperature=0, stream=True)
        next(iter(stream))
        stream.close()
        self.server.wait_for("orrery_busy_sessions", 0)
        self.assertGreaterEqual(self.server.metrics()['orrery_cancelled_total{why="left"}'], 1)

    def test_schema(self):
        answer = self.client.chat.completions.parse(model=MODEL, messages=ASK, temperature=1, seed=1, response_format=Place)
        self.assertIsInstance(answer.choices[0].message.parsed, Place)

    def test_tools(self):
        tool = {"type": "function", "function": {"name": "town_of", "strict": True, "parameters": {
            "type": "object", "properties": {"who": {"enum": ["Ada", "Bruno"]}}, "required": ["who"], "additionalProperties": False}}}
        messages = [{"role": "user", "content": "Where does Ada live?"}]
        ask = dict(model=MODEL, tools=[tool], temperature=0, parallel_tool_calls=False)
        answer = self.calling_client.chat.completions.create(messages=messages, tool_choice="required", **ask).choices[0]
        self.assertEqual(answer.finish_reason, "tool_calls")
        call = answer.message.tool_calls[0]
        self.assertIn(json.loads(call.function.arguments)["who"], ["Ada", "Bruno"])
        messages += [answer.message, {"role": "tool", "tool_call_id": call.id, "content": "Oslo"}]
        self.assertTrue(self.calling_client.chat.completions.create(messages=messages, tool_choice="none", max_tokens=10, **ask).choices[0].message.content)
        arguments = ""
        for chunk in self.calling_client.chat.completions.create(messages=messages[:1], tool_choice="required", stream=True, **ask):
            for part in chunk.choices[0].delta.tool_calls or []:
                arguments += part.function.arguments
        self.assertEqual(arguments, call.function.arguments)

    def test_errors(self):
        with self.assertRaises(openai.NotFoundError):
            self.client.chat.completions.create(model="gpt-9", messages=ASK)
        with self.assertRaises(openai.BadRequestError) as caught:
            self.client.chat.completions.create(model=MODEL, messages=ASK, n=2)
        self.assertEqual(caught.exception.param, "n")

    def test_embeddings(self):
        both = self.client.embeddings.create(model=MODEL, input=["a wolf", "a fox"], dimensions=32)
        floats = self.client.embeddings.create(model=MODEL, input="a fox", dimensions=32, encoding_format="float")
        self.assertEqual(len(both.data), 2)
        self.assertEqual(both.data[1].embedding, floats.data[0].embedding)

    def test_many(self):
        with concurrent.futures.ThreadPoolExecutor(32) as pool:
            answers = list(pool.map(lambda i: self.client.chat.completions.create(model=MODEL, messages=ASK, temperature=0, max_tokens=12), range(64)))
        self.assertEqual(len({a.choices[0].message.content for a in answers}), 1)

    def test_llm(self):
        """The command-line client llm, told of the server by a file of its own."""
        with open(os.path.join(self.folder.name, "extra-openai-models.yaml"), "w") as file:
            file.write("- model_id: orrery\n  model_name: %s\n  api_base: %s\n  can_stream: true\n  supports_schema: true\n" % (MODEL, self.url))
        environment = dict(os.environ, LLM_USER_PATH=self.folder.name, OPENAI_API_KEY="none")
        run = [os.path.join(BIN, "llm"), "-m", "orrery", "-o", "temperature", "0", FACT]
        for more in ([], ["--no-stream"]):
            found = subprocess.run(run + more, env=environment, capture_output=True, text=True, timeout=120)
            self.assertEqual(found.returncode, 0, found.stderr)
            self.assertIn("gray wolf", found.stdout)

    def test_curl(self):
        body = json.dumps({"messages": ASK, "temperature": 0, "stream": True})
        found = subprocess.run(["curl", "-sS", "-N", self.url + "/chat/completions", "-H", "Content-Type: application/json", "-d", body],
                               capture_output=True, text=True, timeout=60)
        self.assertEqual(found.returncode, 0, found.stderr)
        self.assertTrue(found.stdout.rstrip().endswith("data: [DONE]"), found.stdout)
        found = subprocess.run(["curl", "-sS", "-F", "file=@" + __file__, self.url + "/chat/completions"], capture_output=True, text=True, timeout=60)
        self.assertIn("not JSON", found.stdout)


if __name__ == "__main__":
    result = unittest.TextTestRunner(stream=sys.stdout, verbosity=2).run(unittest.defaultTestLoader.loadTestsFromTestCase(Clients))
    failed = len(result.failures + result.errors)
    print("%d passed, %d failed" % (result.testsRun - failed, failed))
    sys.exit(0 if result.wasSuccessful() else 1)
