"""Embeddings and rankings: shapes, order, refusals, and clients that leave."""
import base64
import os
import struct
import subprocess
import sys
import tempfile

from serving import MODEL, ROOT, SLOW, Server, ServerCase, chat_body, request_bytes


def floats(text):
    data = base64.b64decode(text)
    return list(struct.unpack("<%df" % (len(data) // 4), data))


class Vectors(ServerCase):
    def embed(self, texts, **fields):
        status, answer = self.server.post("/v1/embeddings", dict({"input": texts}, **fields))
        self.assertEqual(status, 200, answer)
        self.assertEqual([d["index"] for d in answer["data"]], list(range(len(answer["data"]))))
        return [d["embedding"] for d in answer["data"]], answer["usage"]

    def test_texts(self):
        [one], usage = self.embed("A gray wolf.")
        self.assertEqual(len(one), 256)
        self.assertAlmostEqual(sum(x * x for x in one), 1, places=5)
        several, of_several = self.embed(["A gray wolf.", "A white fox, as everybody knows.", "A gray wolf."], model="demo-q8_0", user="u")
        self.assertEqual(several[0], one)
        self.assertEqual(several[2], one)
        self.assertNotEqual(several[1], one)
        self.assertGreater(of_several["prompt_tokens"], 2 * usage["prompt_tokens"])
        self.assertEqual(of_several["total_tokens"], of_several["prompt_tokens"])

    def test_forms(self):
        [plain], _ = self.embed("A gray wolf.", encoding_format="float", dimensions=16)
        [packed], _ = self.embed("A gray wolf.", encoding_format="base64", dimensions=16)
        self.assertEqual(len(plain), 16)
        self.assertEqual(len(floats(packed)), 16)
        for a, b in zip(plain, floats(packed)):
            self.assertAlmostEqual(a, b, places=6)

    def test_refusals(self):
        for param, body in {
            "input": {}, "input[1]": {"input": ["a", ""]}, "input[0]": {"input": [5]}, "encoding_format": {"input": "a", "encoding_format": "hex"},
            "dimensions": {"input": "a", "dimensions": 0}, "surprise": {"input": "a", "surprise": 1},
        }.items():
            with self.subTest(param):
                self.refused(param, body, "/v1/embeddings")
        self.refused("input", {"input": ""}, "/v1/embeddings")
        self.refused("input", {"input": []}, "/v1/embeddings")
        self.refused("input", {"input": ["a"] * 2049}, "/v1/embeddings")
        self.refused("input", {"input": ["a", "word " * 20000]}, "/v1/embeddings")  # longer than the context
        self.refused("model", {"input": "a", "model": "gpt-9"}, "/v1/embeddings", status=404)
        self.assertIn("n_dimensions", self.server.post("/v1/embeddings", {"input": "a", "dimensions": 257})[1]["error"]["message"])
        status, answer = self.server.post("/v1/rerank", {"query": "q", "documents": ["a"]})
        self.assertEqual(status, 400)
        self.assertIn("has no head", answer["error"]["message"])
        for param, body in {"query": {"documents": ["a"]}, "documents": {"query": "q"}, "documents[0]": {"query": "q", "documents": [1]},
                            "documents[0].text": {"query": "q", "documents": [{}]}, "top_n": {"query": "q", "documents": ["a"], "top_n": 0}}.items():
            with self.subTest(param):
                self.refused(param, body, "/v1/rerank")
        self.assertEqual(self.server.request("GET", "/v1/rerank")[1]["Allow"], "POST")

    def test_beside_answers(self):
        """A client that leaves ends its work; answers go on beside it."""
        left = self.server.metrics()["orrery_cancelled_total{why=\"left\"}"]
        connection = self.server.connect()
        connection.sendall(request_bytes({"input": ["A long text. " * 1500] * 200}, "/v1/embeddings"))
        self.assertEqual(self.server.chat(max_tokens=4)[0], 200)
        connection.close()
        self.server.wait_for("orrery_cancelled_total{why=\"left\"}", left + 1, 20)
        self.assertEqual(len(self.embed("A gray wolf.")[0]), 1)


class Ranking(ServerCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        subprocess.run([sys.executable, os.path.join(ROOT, "bindings/conformance/prepare.py"), MODEL, cls.folder.name], check=True, timeout=60 * SLOW)
        cls.server = Server(model=os.path.join(cls.folder.name, "rank.gguf"))

    @classmethod
    def tearDownClass(cls):
        super().tearDownClass()
        cls.folder.cleanup()

    def test_order(self):
        texts = ["Bruno lives in Salem.", "On Sunday there was wind over the mill.", "Silas keeps the key in the garden."]
        status, answer = self.server.post("/v1/rerank", {"query": "Where does Bruno live?", "documents": texts, "return_documents": True})
        self.assertEqual(status, 200, answer)
        results = answer["results"]
        scores = [r["relevance_score"] for r in results]
        self.assertEqual(scores, sorted(scores, reverse=True))
        self.assertEqual(sorted(r["index"] for r in results), [0, 1, 2])
        for r in results:
            self.assertTrue(0 < r["relevance_score"] < 1, r)
            self.assertEqual(r["document"]["text"], texts[r["index"]])
        status, best = self.server.post("/v1/rerank", {"query": "Where does Bruno live?", "documents": [{"text": t} for t in texts], "top_n": 1})
        self.assertEqual(best["results"], [{"index": results[0]["index"], "relevance_score": results[0]["relevance_score"]}])
        self.assertGreater(best["usage"]["prompt_tokens"], 10)
        self.assertEqual(self.server.chat(max_tokens=2)[0], 200)
