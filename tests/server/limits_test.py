"""Limits, clients that leave, slow ones, and many: nobody takes more than the options say, and nobody waits for another's reader."""
import http.client
import json
import socket
import threading
import time

from serving import SLOW, Server, ServerCase, chat_body, events_of, long_body, read_all, request_bytes, send_chat


class Limits(ServerCase):
    """One session, a queue of one, and little time."""

    OPTIONS = ("--sessions", "1", "--queue", "1", "--body", "64KiB", "--messages", "8", "--max-tokens", "3000", "--read-seconds", "2", "--answer-seconds", "4",
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
        _, answer = self.server.chat("x", max_tokens=100000, response_format=long_body()["response_format"])
        self.assertLessEqual(answer.get("usage", {}).get("completion_tokens", 0), 3000)

    def test_queue(self):
        first = self.server.begin_stream(long_body())
        second = self.server.connect()
        send_chat(second, chat_body("x", max_tokens=2))
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
        self.assertLess(self.server.metrics()["orrery_generated_tokens_total"] - generated, 2900)

        whole = self.server.connect()
        send_chat(whole, long_body())
        self.server.wait_for("orrery_busy_sessions", 1)
        queued = self.server.connect()
        send_chat(queued, long_body())
        self.server.wait_for("orrery_waiting_requests", 1)
        queued.close()
        self.server.wait_for('orrery_cancelled_total{why="left"}', before + 2)
        self.server.wait_for("orrery_waiting_requests", 0, 1)
        self.assertEqual(self.server.metrics()["orrery_busy_sessions"], 1)
        whole.close()
        self.server.wait_for('orrery_cancelled_total{why="left"}', before + 3)
        self.server.wait_for("orrery_busy_sessions", 0, 1)

        prompt = self.server.connect()
        send_chat(prompt, chat_body("%f " % time.time() + "a new text " * 2500, max_tokens=1))
        self.server.wait_for("orrery_busy_sessions", 1)
        prompt.close()
        self.server.wait_for('orrery_cancelled_total{why="left"}', before + 4)
        self.server.wait_for("orrery_busy_sessions", 0, 1)

    def test_deadline(self):
        before = self.server.metrics()['orrery_cancelled_total{why="deadline"}']
        waiting = [self.server.begin_stream(long_body(logprobs=True, top_logprobs=20))]  # rests, because nobody reads
        late = self.server.connect()
        send_chat(late, chat_body("x", max_tokens=1))
        self.assertIn(b" 504 ", late.recv(4096)[:20])
        late.close()
        self.assertGreater(self.server.metrics()['orrery_cancelled_total{why="deadline"}'], before)
        text = read_all_but(waiting[0])
        self.assertEqual(events_of(text)[-1]["error"]["code"], "timeout")
        waiting[0].close()

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
        """More connections than the limit: the server closes the others at once, and is there when they have left."""
        crowd = []
        for _ in range(60):
            crowd.append(socket.create_connection(("127.0.0.1", self.server.port), timeout=10))
        time.sleep(0.3)
        closed = 0
        for connection in crowd:
            connection.setblocking(False)
            try:
                closed += connection.recv(1) == b""
            except BlockingIOError:
                pass
            except OSError:
                closed += 1
        for connection in crowd:
            connection.close()
        self.assertGreaterEqual(closed, 20)
        end = time.monotonic() + 5 * SLOW
        while True:  # the server sees that they have left
            try:
                self.assertEqual(self.server.request("GET", "/health")[0], 200)
                break
            except (OSError, http.client.HTTPException):
                self.assertLess(time.monotonic(), end)
                time.sleep(0.05)


def read_all_but(connection):
    """A chunked response's text, until its last chunk."""
    connection.settimeout(30 * SLOW)
    got = b""
    while not got.endswith(b"0\r\n\r\n"):
        part = connection.recv(1 << 20)
        if not part:
            break
        got += part
    lines = got.decode(errors="replace").split("\r\n")
    return "".join(lines[2:])[-2000:]


class Many(ServerCase):
    OPTIONS = ("--queue", "300")

    def test_two_hundred(self):
        """Two hundred connections, all open before the first asks: each gets its answer."""
        connections = [self.server.connect() for _ in range(200)]
        self.server.wait_for("orrery_connections", 201)
        for i, connection in enumerate(connections):
            send_chat(connection, chat_body("Question %d" % i, max_tokens=4, stream=i % 2 == 0))
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
        """Three clients read nothing of long answers; others get theirs, and the memory of the three stays bounded."""
        slow = []
        for _ in range(3):
            connection = socket.socket()
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            connection.connect(("127.0.0.1", self.server.port))
            send_chat(connection, long_body(stream=True, logprobs=True, top_logprobs=20))
            slow.append(connection)
        self.server.wait_for("orrery_busy_sessions", 3)
        for _ in range(5):
            began = time.monotonic()
            status, _ = self.server.chat(max_tokens=10)
            self.assertEqual(status, 200)
            self.assertLess(time.monotonic() - began, 5 * SLOW)
        # Their answers rest: the tokens stop, and the sessions stay theirs.
        end = time.monotonic() + 60 * SLOW
        seen = -1
        while (now := self.server.metrics()["orrery_decode_seconds_total"], self.memory()) != seen:
            self.assertLess(time.monotonic(), end)
            seen = now
            time.sleep(1)
        self.assertEqual(self.server.metrics()["orrery_busy_sessions"], 3)
        for connection in slow:
            connection.close()
        self.server.wait_for("orrery_busy_sessions", 0)

    def memory(self):
        with open("/proc/%d/statm" % self.server.process.pid) as file:
            return int(file.read().split()[1])

    def test_crowd_that_leaves(self):
        """Clients that leave at any moment, many at once."""
        def visit(i):
            connection = self.server.connect()
            data = request_bytes(long_body(stream=i % 2 == 0))
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
            send_chat(connection, long_body())
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
