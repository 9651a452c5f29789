"""Limits, clients that leave, slow ones, and many: nobody takes more than the options say, and nobody waits for another's reader."""
import json
import re
import socket
import threading
import time

from serving import SLOW, Server, ServerCase, chat_body, events_of, long_body, read_all, request_bytes, send_request


class Limits(ServerCase):
    """One session, a queue of one, and little time to ask."""

    OPTIONS = ("--sessions", "1", "--queue", "1", "--body", "64KiB", "--messages", "8", "--max-tokens", "1500", "--read-seconds", "2",
               "--connections", "40")

    def setUp(self):
        self.server.wait_for("orrery_busy_sessions", 0)
        self.server.wait_for("orrery_waiting_requests", 0)

    def test_bodies(self):
        status, answer = self.server.post("/v1/chat/completions", chat_body("x" * 70000))
        self.assertEqual((status, answer["error"]["code"]), (413, "body_too_long"))
        connection = self.server.connect()
        connection.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n")
        sent = 0
        try:
            while sent < 10 << 20:
                connection.sendall(b"1000\r\n" + b"x" * 4096 + b"\r\n")
                sent += 4096
        except OSError:
            pass
        self.assertLess(sent, 10 << 20)
        connection.close()
        self.refused("messages", chat_body(messages=[{"role": "user", "content": "x"}] * 9))
        self.assertEqual(self.refused("messages", chat_body("one two three " * 4000))["code"], "context_length_exceeded")
        self.assertEqual(self.refused("prompt", {"prompt": "one two three " * 4000}, "/v1/completions")["code"], "context_length_exceeded")

    def test_max_tokens(self):
        _, answer = self.server.post("/v1/completions", long_body(max_tokens=100000))
        self.assertEqual((answer["usage"]["completion_tokens"], answer["choices"][0]["finish_reason"]), (1500, "length"))

    def test_queue(self):
        first = self.server.begin_stream(long_body())
        second = self.server.connect()
        send_request(second, chat_body("x", max_tokens=2))
        self.server.wait_for("orrery_waiting_requests", 1)
        status, head, text = self.server.request("POST", "/v1/chat/completions", chat_body())
        self.assertEqual((status, head["Retry-After"]), (503, "1"), text)
        self.assertEqual(json.loads(text)["error"]["code"], "overloaded")
        first.close()  # its session is free for the second
        self.assertIn(b" 200 ", second.recv(4096)[:20])
        second.close()

    def test_leaving(self):
        """A client leaves while its answer is streamed, while it waits for the whole, while it is queued, and while its prompt is read."""
        def left():
            return self.server.metrics()['orrery_cancelled_total{why="left"}']

        before = left()
        generated = self.server.metrics()["orrery_generated_tokens_total"]
        self.server.begin_stream(long_body()).close()
        self.server.wait_for('orrery_cancelled_total{why="left"}', before + 1)
        self.server.wait_for("orrery_busy_sessions", 0, 1)
        self.assertLess(self.server.metrics()["orrery_generated_tokens_total"] - generated, 1400)

        whole = self.server.connect()
        send_request(whole, long_body())
        self.server.wait_for("orrery_busy_sessions", 1)
        queued = self.server.connect()
        send_request(queued, long_body())
        self.server.wait_for("orrery_waiting_requests", 1)
        queued.close()
        self.server.wait_for('orrery_cancelled_total{why="left"}', before + 2)
        self.server.wait_for("orrery_waiting_requests", 0, 1)
        self.assertEqual(self.server.metrics()["orrery_busy_sessions"], 1)
        whole.close()
        self.server.wait_for('orrery_cancelled_total{why="left"}', before + 3)
        self.server.wait_for("orrery_busy_sessions", 0, 1)

        prompt = self.server.connect()
        send_request(prompt, chat_body("%f " % time.time() + "a new text " * 1500, max_tokens=1))
        self.server.wait_for("orrery_busy_sessions", 1)
        prompt.close()
        self.server.wait_for('orrery_cancelled_total{why="left"}', before + 4)
        self.server.wait_for("orrery_busy_sessions", 0, 1)

    def test_slow_requests(self):
        """A request that comes byte by byte, and a connection that says nothing, end after --read-seconds."""
        before = self.server.metrics()["orrery_slow_connections_total"]
        silent, slow = self.server.connect(), self.server.connect()
        began = time.monotonic()
        data = request_bytes(chat_body("x" * 1000))
        try:
            for byte in data:
                slow.sendall(bytes([byte]))
                time.sleep(0.1)
                if time.monotonic() - began > 20 * SLOW:
                    break
        except OSError:
            pass
        self.assertLess(time.monotonic() - began, 8 * SLOW)
        silent.settimeout(8 * SLOW)
        self.assertEqual(silent.recv(10), b"")
        self.assertGreaterEqual(self.server.metrics()["orrery_slow_connections_total"], before + 1)
        silent.close()
        slow.close()

    def test_connections(self):
        """More connections than the limit wait outside, and are served when others have left."""
        crowd = [self.server.connect() for _ in range(40)]
        late = self.server.connect()
        late.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
        late.settimeout(0.5)
        with self.assertRaises(TimeoutError):
            late.recv(100)
        for connection in crowd:
            connection.close()
        late.settimeout(10 * SLOW)
        self.assertIn(b" 200 ", late.recv(100)[:20])
        late.close()


def rest_of_stream(connection):
    """A chunked response's text, until its last chunk."""
    connection.settimeout(30 * SLOW)
    got = b""
    while not got.endswith(b"0\r\n\r\n"):
        part = connection.recv(1 << 20)
        if not part:
            break
        got += part
    return re.sub("\r\n[0-9a-f]+\r\n", "", got.decode())


class Deadline(ServerCase):
    OPTIONS = ("--sessions", "1", "--answer-seconds", "2")

    def test_deadline(self):
        """A streamed answer ends with an error, and a request that is still queued gets one."""
        stream, queued = self.server.begin_stream(long_body()), self.server.connect()
        send_request(queued, chat_body("x", max_tokens=1))
        began = time.monotonic()
        self.assertEqual(events_of(rest_of_stream(stream))[-1]["error"]["code"], "timeout")
        self.assertLess(time.monotonic() - began, 4 * SLOW)
        self.assertGreaterEqual(self.server.metrics()['orrery_cancelled_total{why="deadline"}'], 1)
        self.assertIn(queued.recv(100)[:12], (b"HTTP/1.1 200", b"HTTP/1.1 504"))  # it came a moment later
        status, answer = self.server.post("/v1/completions", long_body())
        self.assertEqual((status, answer["error"]["code"]), (504, "timeout"))
        stream.close()
        queued.close()


class Many(ServerCase):
    OPTIONS = ("--queue", "300", "--unread", "32KiB")

    def test_two_hundred(self):
        """Two hundred connections, all open before the first asks: each gets its answer."""
        connections = [self.server.connect() for _ in range(200)]
        self.server.wait_for("orrery_connections", 201)
        for i, connection in enumerate(connections):
            send_request(connection, chat_body("Question %d" % i, max_tokens=4, stream=i % 2 == 0))
        for connection in connections:
            got = b""
            while not (b"[DONE]" in got or b"\"usage\"" in got):
                part = connection.recv(65536)
                self.assertTrue(part, got)
                got += part
            self.assertIn(b" 200 ", got[:20])
            connection.close()
        self.server.wait_for("orrery_connections", 1)
        self.server.wait_for("orrery_busy_sessions", 0)

    def test_slow_readers(self):
        """Three clients read nothing of long answers: the answers rest, and others get theirs. An answer goes on when its client reads."""
        slow = []
        for _ in range(3):
            connection = socket.socket()
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            connection.settimeout(30 * SLOW)
            connection.connect(("127.0.0.1", self.server.port))
            send_request(connection, long_body(stream=True, logprobs=20))
            slow.append(connection)
        same = 0  # the system's buffers fill up first, and the answers go on meanwhile
        end = time.monotonic() + 60 * SLOW
        while same < 15:
            self.assertLess(time.monotonic(), end)
            same = same + 1 if self.server.metrics()["orrery_resting_answers"] == 3 else 0
            time.sleep(0.05)
        self.assertEqual(self.server.metrics()["orrery_busy_sessions"], 3)
        began = time.monotonic()
        for _ in range(5):
            self.assertEqual(self.server.chat(max_tokens=10)[0], 200)
        self.assertLess(time.monotonic() - began, 5 * SLOW)
        self.server.wait_for("orrery_resting_answers", 3)
        self.assertIn("[DONE]", rest_of_stream(slow[0]))
        for connection in slow:
            connection.close()
        self.server.wait_for("orrery_busy_sessions", 0)

    def test_crowd_that_leaves(self):
        """Clients that leave at any moment, many at once."""
        def visit(i):
            connection = self.server.connect()
            data = request_bytes(long_body(stream=i % 2 == 0), "/v1/completions")
            connection.sendall(data[: len(data) if i % 4 else len(data) // 2])
            time.sleep(0.01 * (i % 13))
            connection.close()

        threads = [threading.Thread(target=visit, args=(i,)) for i in range(100)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.server.wait_for("orrery_busy_sessions", 0, 10)
        self.server.wait_for("orrery_waiting_requests", 0, 10)
        self.server.wait_for("orrery_connections", 1)


class Ending(ServerCase):
    def test_under_way(self):
        """The server ends while answers are streamed, awaited and queued: each client hears of it, and the port is free."""
        server = Server("--sessions", "2")
        stream = server.begin_stream(long_body())
        waiting = [server.connect() for _ in range(3)]
        for connection in waiting:
            send_request(connection, long_body())
        server.wait_for("orrery_waiting_requests", 2)
        began = time.monotonic()
        self.assertEqual(server.stop(), 0)
        self.assertLess(time.monotonic() - began, 5 * SLOW)
        self.assertIn(b"shutting_down", read_all(stream))
        for connection in waiting:
            self.assertIn(b" 503 ", read_all(connection)[:20])
            connection.close()
        stream.close()
        with self.assertRaises(OSError):
            socket.create_connection(("127.0.0.1", server.port), timeout=5).close()
