"""Tools, keys and web pages: a server with a template that writes calls, an API key and one allowed origin."""
import json
import os
import tempfile

from serving import CALLING_TEMPLATE, Server, ServerCase, chat_body

TOOLS = [{"type": "function", "function": {"name": name, "description": "Looks it up.", "parameters": {
    "type": "object", "properties": {"who": {"enum": ["Ada", "Bruno"]}, "year": {"type": "integer", "minimum": 1, "maximum": 99}},
    "required": ["who", "year"], "additionalProperties": False}}} for name in ("town_of", "pet_of")]
KEY = {"Authorization": "Bearer secret"}


class Tools(ServerCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        files = {"calling.jinja": CALLING_TEMPLATE, "key": "secret\n"}
        for name, text in files.items():
            with open(os.path.join(cls.folder.name, name), "w") as file:
                file.write(text)
        cls.server = Server("--template", cls.folder.name + "/calling.jinja", "--api-key-file", cls.folder.name + "/key", "--allow-origin",
                            "http://localhost:3000")

    @classmethod
    def tearDownClass(cls):
        cls.folder.cleanup()
        super().tearDownClass()

    def chat(self, **fields):
        return self.server.post("/v1/chat/completions", chat_body("Where does Ada live?", max_tokens=120, **fields), KEY)

    def check_call(self, call, names=("town_of", "pet_of")):
        self.assertEqual(call["type"], "function")
        self.assertTrue(call["id"])
        self.assertIn(call["function"]["name"], names)
        arguments = json.loads(call["function"]["arguments"])
        self.assertEqual(list(arguments), ["who", "year"])
        self.assertIn(arguments["who"], ["Ada", "Bruno"])

    def test_required(self):
        status, answer = self.chat(tools=TOOLS, tool_choice="required", parallel_tool_calls=False)
        self.assertEqual(status, 200, answer)
        choice = answer["choices"][0]
        self.assertEqual(choice["finish_reason"], "tool_calls")
        self.assertEqual(len(choice["message"]["tool_calls"]), 1)
        self.check_call(choice["message"]["tool_calls"][0])

    def test_named_and_result(self):
        choice = {"type": "function", "function": {"name": "pet_of"}}
        _, answer = self.chat(tools=TOOLS, tool_choice=choice, parallel_tool_calls=False)
        message, asked = answer["choices"][0]["message"], answer["usage"]["prompt_tokens"]
        self.check_call(message["tool_calls"][0], ["pet_of"])
        talk = [{"role": "user", "content": "Where does Ada live?"}, message,
                {"role": "tool", "tool_call_id": message["tool_calls"][0]["id"], "content": "a gray wolf"}]
        status, answer = self.chat(messages=talk, tools=TOOLS, tool_choice="none")
        self.assertEqual(status, 200, answer)
        self.assertNotIn("tool_calls", answer["choices"][0]["message"])
        self.assertGreater(answer["usage"]["prompt_tokens_details"]["cached_tokens"], asked - 3)

    def test_stream(self):
        body = chat_body("Where does Ada live?", max_tokens=120, tools=TOOLS, tool_choice="required", parallel_tool_calls=False)
        whole = self.server.post("/v1/chat/completions", body, KEY)[1]["choices"][0]["message"]["tool_calls"]
        chunks = self.server.stream("/v1/chat/completions", body, KEY)
        deltas = [d for c in chunks[:-1] for d in c["choices"][0]["delta"].get("tool_calls", [])]
        self.assertEqual({d["index"] for d in deltas}, {0})
        self.assertTrue(deltas[0]["id"])
        self.assertEqual(deltas[0]["function"]["name"], whole[0]["function"]["name"])
        self.assertEqual("".join(d["function"]["arguments"] for d in deltas), whole[0]["function"]["arguments"])
        self.assertEqual(chunks[-2]["choices"][0]["finish_reason"], "tool_calls")

    def refused_field(self, param, **fields):
        status, answer = self.chat(**fields)
        self.assertEqual((status, answer.get("error", {}).get("param")), (400, param), answer)

    def test_refusals(self):
        self.refused_field("tool_choice", tools=TOOLS, tool_choice={"type": "function", "function": {"name": "other"}})
        self.refused_field("tool_choice", tools=TOOLS, tool_choice="sometimes")
        self.refused_field("tool_choice", tool_choice="required")
        self.refused_field("tools[0].type", tools=[{"type": "web_search"}])
        self.refused_field("tools[0].function.name", tools=[{"type": "function", "function": {}}])
        self.refused_field("tools[1].function.parameters", tools=[TOOLS[0], {"type": "function", "function": {"name": "x", "parameters": 3}}])

    def test_key(self):
        for headers in ({}, {"Authorization": "Bearer secre"}, {"Authorization": "Bearer secret2"}, {"Authorization": "Basic secret"}):
            for method, path in (("POST", "/v1/chat/completions"), ("GET", "/v1/models"), ("GET", "/metrics")):
                status, _, text = self.server.request(method, path, chat_body() if method == "POST" else None, headers)
                self.assertEqual(status, 401, text)
                self.assertEqual(json.loads(text)["error"]["code"], "invalid_api_key")
        self.assertEqual(self.server.request("GET", "/v1/models", None, KEY)[0], 200)
        self.assertEqual(self.server.request("GET", "/health")[0], 200)

    def test_origin(self):
        status, head, _ = self.server.request("GET", "/v1/models", None, dict(KEY, Origin="http://localhost:3000"))
        self.assertEqual((status, head["Access-Control-Allow-Origin"]), (200, "http://localhost:3000"))
        status, head, _ = self.server.request("OPTIONS", "/v1/chat/completions", None, {
            "Origin": "http://localhost:3000", "Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "authorization,x-stainless-os"})
        self.assertEqual((status, head["Access-Control-Allow-Headers"]), (204, "authorization,x-stainless-os"))
        for origin in ("http://evil.example", "null", "http://localhost:3001"):
            status, head, text = self.server.request("POST", "/v1/chat/completions", chat_body(), dict(KEY, Origin=origin))
            self.assertEqual((status, head["Access-Control-Allow-Origin"]), (403, None), text)


class PlainDoor(ServerCase):
    """Without --allow-origin and --api-key."""

    def test_host(self):
        for host in ("evil.example", "evil.example:80", "127.0.0.1.evil.example", "localhost.evil.example", "[::2]:80"):
            self.assertEqual(self.server.request("GET", "/health", None, {"Host": host})[0], 403, host)
        for host in ("localhost", "127.0.0.1:80", "[::1]:8080"):
            self.assertEqual(self.server.request("GET", "/health", None, {"Host": host})[0], 200, host)

    def test_no_origin(self):
        self.assertEqual(self.server.request("GET", "/v1/models", None, {"Origin": "http://localhost"})[0], 403)
        self.assertEqual(self.server.request("OPTIONS", "/v1/models", None, {"Origin": "http://localhost"})[0], 403)
