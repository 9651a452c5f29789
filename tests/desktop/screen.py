# screen.py - the application as a user of assistive technology meets it: by roles, names and states, with a keyboard and pictures.
import os
import re
import signal
import subprocess
import tempfile
import time

import gi

gi.require_version("Atspi", "2.0")
from gi.repository import Atspi, GLib  # noqa: E402

PATIENCE_S = 30  # for things that take a moment; machines are busy


class Missing(AssertionError):
    pass


def until(what, condition, seconds=PATIENCE_S):
    """The first true result of `condition`, which may fail while the screen changes."""
    end = time.monotonic() + seconds
    while True:
        try:
            result = condition()
        except Exception as error:  # the tree changes under our hands
            result = None
            if time.monotonic() > end:
                raise Missing(f"{what}: {error}")
        if result:
            return result
        if time.monotonic() > end:
            raise Missing(what)
        time.sleep(0.2)


def walk(node):
    """A node and all below it, as they are now and not as the client's cache has them."""
    while GLib.MainContext.default().pending():
        GLib.MainContext.default().iteration(False)
    if node is not None:
        node.clear_cache()
        yield from below(node)


def below(node):
    yield node
    for i in range(node.get_child_count()):
        child = node.get_child_at_index(i)
        if child is not None:
            yield from below(child)


def named(node):
    # GTK 4.8 gives a button with a mnemonic both names, "_Open Open".
    return node.get_name()


class App:
    """One run of the application. `data`: its data home, which outlives it. ORRERY_DESKTOP_UNDER: a program to run it under (valgrind)."""
    running = []

    def __init__(self, build, data, *arguments, size=None, environment=None):
        self.log = tempfile.NamedTemporaryFile(prefix="desktop-", mode="w+")
        program = os.path.join(build, "samples", "desktop", "orrery-desktop")
        self.process = subprocess.Popen(
            [*os.environ.get("ORRERY_DESKTOP_UNDER", "").split(), program, *arguments], stdout=self.log, stderr=self.log,
            env={**os.environ, "XDG_DATA_HOME": data, "GTK_A11Y": "atspi", **(environment or {})})
        App.running.append(self.process)
        self.known = {}
        self.root = until("the application's window", self._find_root)
        if size:
            self.window_id()
            subprocess.run(["xdotool", "windowsize", "--sync", self.window, *map(str, size)], check=True)

    def _find_root(self):
        if self.process.poll() is not None:
            raise Missing(f"the application ended: {self.said()}")
        desktop = Atspi.get_desktop(0)
        for i in range(desktop.get_child_count()):
            child = desktop.get_child_at_index(i)
            if child and child.get_process_id() == self.process.pid and child.get_child_count():
                return child
        return None

    def said(self):
        self.log.seek(0)
        return self.log.read()

    # ---- reading ----
    def all(self, role, name=""):
        found = []
        for node in walk(self.root):
            try:
                if node.get_role_name() == role and name in named(node):
                    found.append(node)
            except Exception:  # it has gone meanwhile
                pass
        return found

    def find(self, role, name, seconds=PATIENCE_S):
        return until(f"a {role} named {name!r}", lambda: self.all(role, name), seconds)[0]

    def gone(self, role, name):
        until(f"no {role} named {name!r}", lambda: not self.all(role, name))

    def fixed(self, role, name):
        """A widget that stays for the whole run is looked for once: GTK 4.8 dies of questions about widgets that have just gone."""
        if (role, name) not in self.known:
            self.known[role, name] = self.find(role, name)
        node = self.known[role, name]
        node.clear_cache()
        return node

    def is_enabled(self, role, name):
        return self.find(role, name).get_state_set().contains(Atspi.StateType.SENSITIVE)

    @staticmethod
    def has(node, state):
        node.clear_cache()
        return node.get_state_set().contains(state)

    def heights(self):
        """Of the answers, in pixels: their text may be there and not be seen."""
        return [Atspi.Component.get_extents(n, Atspi.CoordType.WINDOW).height
                for n in walk(self.fixed("list", "Messages")) if n.get_role_name() == "text"]

    def rows(self, name):
        """Conversations in the side bar."""
        return [n for n in walk(self.fixed("list", "Conversations")) if n.get_role_name() == "list item" and name in named(n)]

    def labels(self):
        return [named(n) for n in self.all("label")]

    def label(self, pattern, seconds=PATIENCE_S):
        """The first label that matches."""
        return until(f"a label like {pattern!r}", lambda: [t for t in self.labels() if re.search(pattern, t)], seconds)[0]

    @staticmethod
    def text(node):
        return Atspi.Text.get_text(node, 0, -1)

    def dialogue(self):
        """[(role, text)] of the messages on the screen."""
        messages = []
        for row in walk(self.fixed("list", "Messages")):
            if row.get_role_name() == "list item":
                bodies = [c for c in (row.get_child_at_index(i) for i in range(row.get_child_count())) if c.get_role_name() in ("label", "text")]
                texts = [c for c in bodies if c.get_role_name() == "text"]
                messages.append((named(row).split()[0], self.text(texts[0]) if texts else named(bodies[-1])))
        return messages

    def answer(self, number, seconds=2 * PATIENCE_S):
        """The text of an answer that is complete."""
        self.finished(seconds)
        return until(f"answer {number}", lambda: [n for n in walk(self.fixed("list", "Messages")) if n.get_role_name() == "text"][number - 1:],
                     seconds) and self.text([n for n in walk(self.fixed("list", "Messages")) if n.get_role_name() == "text"][number - 1])

    def finished(self, seconds=2 * PATIENCE_S):
        fork = self.fixed("push button", "Fork")   # which is enabled while nothing is answered
        until("the answer's end", lambda: self.has(fork, Atspi.StateType.SENSITIVE), seconds)

    def banner_node(self):
        return next((n for n in self.all("filler", "InfoBar") + self.all("info bar")), None)

    def banner(self):
        """What the banner says, or an empty text."""
        bar = self.banner_node()
        shown = bar and [n for n in walk(bar) if n.get_role_name() == "label" and n.get_state_set().contains(Atspi.StateType.VISIBLE)]
        return named(shown[0]) if shown and named(shown[0]) != "GtkLabel" else ""

    # ---- acting ----
    def press(self, name, role="push button"):
        node = until(f"a {role} {name!r} that can be pressed",
                     lambda: [n for n in self.all(role, name) if n.get_state_set().contains(Atspi.StateType.SENSITIVE)])[0]
        assert Atspi.Action.do_action(node, 0), name
        time.sleep(0.5)  # a button acts a quarter of a second later

    def write(self, text):
        box = self.fixed("text", "Message")
        assert Atspi.EditableText.set_text_contents(box, text)
        until("the text in the box", lambda: self.text(box) == text)

    def ask(self, question):
        self.write(question)
        self.press("Send")
        self.sent()

    def sent(self):
        until("an empty box", lambda: self.text(self.fixed("text", "Message")) == "")

    def slide(self, name, value):
        assert Atspi.Value.set_current_value(self.find("slider", name), value)

    def open(self):
        """From the first page to the conversation."""
        self.press("Open model and start")
        until("a conversation", lambda: self.rows(""))

    # ---- keyboard and pictures ----
    def windows(self):
        return subprocess.run(["xdotool", "search", "--onlyvisible", "--pid", str(self.process.pid)], capture_output=True, text=True).stdout.split()

    def window_id(self):
        self.window = until("the X window", self.windows)[-1]
        return self.window

    def keys(self, *keys):
        self.window_id()
        subprocess.run(["xdotool", "windowfocus", "--sync", self.window], check=True)
        for key in keys:
            subprocess.run(["xdotool", "key", "--clearmodifiers", key], check=True)
            time.sleep(0.15)

    def type(self, text):
        subprocess.run(["xdotool", "type", "--delay", "10", text], check=True)

    def focused(self):
        for node in walk(self.root):
            if node.get_state_set().contains(Atspi.StateType.FOCUSED) and node.get_role_name() not in ("frame", "application"):
                return node
        return None

    @staticmethod
    def picture(path):
        subprocess.run(["import", "-window", "root", path], check=True)
        return path

    @staticmethod
    def brightness(x, y):
        out = subprocess.run(["import", "-window", "root", "-crop", f"4x4+{x}+{y}", "-colorspace", "Gray", "-format", "%[fx:mean]", "info:"],
                             capture_output=True, text=True, check=True).stdout
        return float(out)

    # ---- ending ----
    def close(self, seconds=2 * PATIENCE_S):
        """Asks it to close, as a window manager does; its exit status."""
        self.process.send_signal(signal.SIGTERM)
        return self.wait(seconds)

    def wait(self, seconds=2 * PATIENCE_S):
        try:
            return self.process.wait(seconds)
        finally:
            if self.process.poll() is None:
                self.process.kill()
                self.process.wait()
            said = [line for line in self.said().splitlines() if re.search(r"-(WARNING|CRITICAL) \*\*|(WARNING|CRITICAL) \*\*:", line)]
            assert not said, said   # of GTK's or GLib's: a mistake of ours, or of a file of ours
