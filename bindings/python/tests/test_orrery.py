"""What Python's users expect beyond the conformance script: early leaving, async, exceptions, threads, views, collection."""

import array
import asyncio
import dataclasses
import gc
import json
import os
import sys
import threading
import time
import unittest
from typing import Literal

import orrery

MODEL = sys.argv.pop(1)
TEXT = ("Nobody in the mill noticed the orange owl. Bruno lives in Salem. Orla is a printer from Tunis. Silas keeps the key in "
        "the garden. ")
# Prints calls; the model has learnt none, but the grammar holds it to the format.
CALLING = ("{%- for m in messages -%}{{- '<' + m.role + '>' + m.content -}}{%- for c in m.tool_calls or [] -%}"
           "{{- '<call>{\"name\": \"' + c.function.name + '\", \"arguments\": ' + (c.function.arguments | tojson) + '}</call>' -}}{%- endfor -%}"
           "{{- '</>' -}}{%- endfor -%}{%- if add_generation_prompt -%}{{- '<assistant>' -}}{%- endif -%}")
QUESTION = TEXT + "\n\nWhere does Bruno live?"


class Orrery(unittest.TestCase):
    def setUp(self):
        self.runtime = orrery.Runtime(n_threads=1, backend="cpu", device_budget_bytes=256 << 20, reservoir_bytes=1 << 20)
        self.model = self.runtime.open(MODEL)
        self.session = self.model.session(n_context=8192)

    def ask(self, question=QUESTION, **options):
        self.session.add_message("user", question)
        return self.session.generate(**options)

    def test_numbers_out_of_range_are_refused_by_name(self):
        for given, words in (({"n_context": 2**32 + 256}, "n_context is 4294967552, expected 0 to 4294967295"),
                             ({"n_context": -1}, "n_context is -1"), ({"kv_budget_bytes": 2**64}, "kv_budget_bytes")):
            with self.assertRaisesRegex(ValueError, words):
                self.model.session(**given)
        for given in ({"n_context": "many"}, {"n_context": 2.5}, {"kv_budget_share": "half"}, {"policy": 5}):
            with self.assertRaisesRegex(TypeError, next(iter(given))):
                self.model.session(**given)
        with self.assertRaisesRegex(ValueError, "logit_bias"):
            self.ask(logit_bias={2**32 + 5: 1.0})
        vocab = self.model.vocab()
        with self.assertRaisesRegex(ValueError, r"tokens\[1\] is 4294967296"):
            vocab.detokenize([1, 2**32])
        with self.assertRaises(TypeError):
            vocab.tokenize(5)
        with self.assertRaises(ValueError):
            vocab.tokenize("a", 2**32 + 1)
        with self.assertRaises(ValueError):
            self.runtime.set_threads(2**32 + 1)
        with self.assertRaises(ValueError):
            self.session.rewind(-1)

    def test_answers_have_their_form(self):
        @dataclasses.dataclass
        class Home:
            town: str
            sure: bool = True

        self.assertIsInstance(self.ask(schema=Home, max_tokens=60).value(), Home)
        self.assertEqual(self.ask(schema={"const": [1, "a"]}).value(), [1, "a"])
        self.assertIn(self.ask(schema=Literal["yes", "no"], temperature=1.0).value(), ("yes", "no"))
        with self.assertRaisesRegex(ValueError, "cut"):
            self.ask(schema={"const": "a text of many words"}, max_tokens=2).value()
        with self.assertRaisesRegex(TypeError, "not both"):
            self.ask(schema={}, grammar="root ::= x")
        with self.assertRaisesRegex(orrery.UnsupportedError, "uniqueItems"):
            self.ask(schema={"uniqueItems": True})
        with self.assertRaises(TypeError):
            self.ask().value()
        matcher = self.model.vocab().matcher(schema={"enum": ["north", "nowhere"]})
        self.assertEqual(matcher.match('"north"'), (7, True))
        self.assertEqual(matcher.accept(matcher.forced()), 3)
        matcher.rewind(0)
        self.assertEqual(matcher.match(b'"x'), (1, False))

    def test_functions_are_tools(self):
        asked = []

        def town_of(who: Literal["Ada", "Bruno"], year: Literal[1990, 2020] = 2020) -> dict:
            """The town where a person lives."""
            asked.append((who, year))
            return {"town": "Salem"}

        self.session.add_message("user", QUESTION)
        text = self.session.run_tools(town_of, template={"template_source": CALLING}, tools=orrery.Tools.REQUIRED, one_call=1, max_tokens=80, most_turns=2)
        self.assertIsInstance(text, str)
        self.assertEqual(len(asked), 1)
        self.assertIn(asked[0][0], ("Ada", "Bruno"))
        self.assertIn('"tool_calls"', self.session.message(1))
        self.assertIn("Salem", self.session.message(2))
        self.session.rewind_messages(1)
        fails = orrery.Function("fails", "Divides.", lambda **given: 1 // len(given))
        forced = {"template": {"template_source": CALLING}, "tools": orrery.Tools.REQUIRED, "tool_name": "fails", "max_tokens": 80}
        self.session.run_tools(fails, most_turns=2, one_call=1, **forced)
        self.assertIn("ZeroDivisionError", self.session.message(2))
        self.session.rewind_messages(1)
        self.session.run_tools(fails, most_turns=1, **forced)
        self.assertEqual(self.session.n_messages(), 2)
        with self.assertRaisesRegex(ValueError, "most_turns"):
            self.session.run_tools(fails, most_turns=0)
        self.session.set_template(template_source=CALLING, tools_json=json.dumps([orrery.forms.tool_of(town_of)]))
        events = [e for e in self.ask("And Ada?", tools=orrery.Tools.REQUIRED, one_call=1, max_tokens=80)]
        kinds = [type(e) for e in events if not isinstance(e, (orrery.Token, orrery.Progress))]
        self.assertEqual([kinds[0], kinds[-2], kinds[-1]], [orrery.Call, orrery.CallEnd, orrery.Done])
        parts = "".join(e.text for e in events if isinstance(e, orrery.Arguments))
        end = next(e for e in events if isinstance(e, orrery.CallEnd))
        self.assertEqual((parts, end.name, events[-1].finish_reason), (end.text, "town_of", orrery.FinishReason.CALLS))

    def test_ask_returns_the_whole_answer(self):
        self.assertEqual(self.session.ask(QUESTION).strip(), "Bruno lives in Salem.")
        self.assertEqual(self.session.n_messages(), 2)

    def test_what_a_hook_keeps_stays_valid(self):
        kept = []

        def hook(logits, tokens):
            kept.append((logits, tokens, list(logits[:4]), list(tokens)))
            logits[7] = 1e9
        tokens = [e.token for e in self.ask(max_tokens=3, logits_hook=hook) if isinstance(e, orrery.Token)]
        self.assertEqual(tokens, [7, 7, 7])
        gc.collect()
        for logits, seen, first, ids in kept:
            self.assertEqual(list(logits[:4]), first)
            self.assertEqual(list(seen), ids)

    def test_read_only_memory_and_paths(self):
        import mmap
        import pathlib
        data = pathlib.Path(MODEL).read_bytes()
        with open(MODEL, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
            for memory in (data, bytearray(data), memoryview(data), memoryview(data).toreadonly(), mapped):
                self.assertEqual(orrery.plan(orrery.Memory(memory)).weights_bytes, orrery.plan(MODEL).weights_bytes)
            orrery.Vocab(orrery.Memory(mapped)).close()
        with self.runtime.open(orrery.Memory(memoryview(data))) as model:
            self.assertEqual(model.info().n_vocab, self.model.info().n_vocab)
        with self.assertRaises((BufferError, ValueError)):
            orrery.plan(orrery.Memory(memoryview(data)[::2]))
        path = pathlib.Path(MODEL)
        orrery.Vocab(path).close()
        self.runtime.open(path).close()
        self.assertIn("n_tensors" if "n_tensors" in orrery.inspect(MODEL) else "tensors", orrery.inspect(path))

    def test_adapters_are_options_of_sessions_and_plans(self):
        path = os.path.join(os.path.dirname(MODEL), "adapter.gguf")
        wishes = {"runtime": {"backend": "cpu", "device_budget_bytes": 256 << 20}}
        planned = [orrery.plan(MODEL, session={"n_context": 512, **more}, **wishes).device_bytes for more in ({}, {"adapters": [(path, 1.0)]})]
        self.assertGreater(planned[1], planned[0])
        adapter = self.model.adapter(path)
        session = self.model.session(n_context=512, adapters=[(adapter, 0.5)])
        self.assertEqual(orrery.plan(MODEL, session={"n_context": 512, "adapters": [(adapter, 0.5)]}, **wishes).device_bytes, planned[1])
        adapter.close()
        session.evaluate([70, 71, 72])
        first = list(session.logits())
        with open(path, "rb") as file:
            again = self.model.adapter(orrery.Memory(file.read()))
        other = self.model.session(n_context=512)
        other.evaluate([70, 71, 72])
        self.assertNotEqual(list(other.logits()), first)
        other.set_adapters([(again, 0.5)])
        self.assertEqual(other.n_tokens(), 0)
        other.evaluate([70, 71, 72])
        self.assertEqual(list(other.logits()), first)
        again.close()
        with self.assertRaises(ValueError):
            other.set_adapters([(again, 1.0)])
        with self.assertRaises(orrery.InvalidArgumentError):
            self.model.session(adapters=[(path, 1.0)])

    def test_a_draft_model_is_open_for_sessions_and_a_source_for_plans(self):
        with open(MODEL, "rb") as file:
            data = bytearray(file.read())
        memory = orrery.Memory(data)
        wishes = {"runtime": {"backend": "cpu", "device_budget_bytes": 256 << 20}}
        drafts = {"n_context": 512, "speculate": orrery.Speculate.DRAFT}
        planned = [orrery.plan(MODEL, session={"n_context": 512, **more}, **wishes).full_kv_bytes
                   for more in ({}, {**drafts, "draft_source": MODEL}, {**drafts, "draft_source": memory})]
        self.assertGreater(planned[1], planned[0])
        self.assertEqual(planned[2], planned[1])
        draft = self.runtime.open(memory)
        session = self.model.session(draft_model=draft, **drafts)
        draft.close()
        plain = self.model.session(n_context=512)
        answers = []
        for s in (plain, session):
            s.add_message("user", QUESTION)
            answers.append("".join(s.generate(max_tokens=12).text()))
        self.assertEqual(answers[0], answers[1])
        with self.assertRaises(ValueError):
            self.model.session(draft_model=draft, **drafts)
        del draft
        fork = session.fork()
        gc.collect()
        with self.assertRaises(BufferError):  # sessions read their draft model's weights there
            data.append(0)
        del session
        gc.collect()
        with self.assertRaises(BufferError):
            data.append(0)
        del fork, s
        gc.collect()
        data.append(0)
        for wrong in (plain, MODEL, 1):
            with self.assertRaises(TypeError):
                self.model.session(draft_model=wrong, **drafts)
        with self.assertRaises(orrery.InvalidArgumentError) as caught:
            self.model.session(draft_source=MODEL, **drafts)
        self.assertEqual(caught.exception.option, "draft_source")

    def test_break_frees_at_once(self):
        gc.disable()
        try:
            generation = self.ask()
            for _ in generation:
                break
            self.assertTrue(generation.closed)
            self.session.add_message("user", "not busy")
        finally:
            gc.enable()

    def test_events_of_several_generations_are_those_of_each(self):
        def events(session):
            session.add_message("user", QUESTION)
            return session.generate(max_tokens=6)

        def times_left_out(event):
            return repr(event).split("first_token_us")[0]

        sessions = [self.model.session(n_context=512) for _ in range(3)]
        generations = [events(session) for session in sessions]
        found = {g: [] for g in generations}
        for generation, event in orrery.events_of(generations):
            found[generation].append(times_left_out(event))
        expected = [times_left_out(event) for event in events(self.model.session(n_context=512))]
        self.assertGreater(len(expected), 8)
        for generation in generations:
            self.assertEqual(found[generation], expected)
        for generation in generations:
            generation.close()

    def test_exceptions_of_a_hook_come_out_of_events_of(self):
        def stumble(_logits, _tokens):
            raise KeyError("hook")
        other = self.model.session(n_context=512)
        other.add_message("user", "hello")
        fine = other.generate(max_tokens=3)
        bad = self.ask(max_tokens=3, logits_hook=stumble)
        told = []
        with self.assertRaises(KeyError):
            for generation, event in orrery.events_of([bad, fine]):
                told.append(generation)
        rest = [event for generation, event in orrery.events_of([fine])]
        self.assertIsInstance(rest[-1], orrery.Done)
        bad.close()
        fine.close()

    def test_exception_in_loop_frees_at_once(self):
        with self.assertRaises(KeyError):
            for _ in self.ask():
                raise KeyError
        self.session.add_message("user", "not busy")

    def test_async_break_frees_at_once(self):
        async def work():
            generation = self.ask()
            async for _ in generation:
                break
            self.assertTrue(generation.closed)
            self.session.add_message("user", "not busy")
        asyncio.run(work())

    def test_async_events_leave_the_loop_free(self):
        async def work():
            ticks = 0

            async def tick():
                nonlocal ticks
                while True:
                    await asyncio.sleep(0.001)
                    ticks += 1
            ticker = asyncio.ensure_future(tick())
            text = ""
            async for event in self.ask(TEXT * 60 + "\n\nWhere does Bruno live?"):
                text += event.text if isinstance(event, orrery.Text) else ""
            ticker.cancel()
            return text, ticks
        text, ticks = asyncio.run(work())
        self.assertIn("Salem", text)
        self.assertGreater(ticks, 5)

    def test_cancelled_task_frees_the_session(self):
        async def work():
            async def consume():
                async for _ in self.ask(TEXT * 100):
                    pass
            task = asyncio.ensure_future(consume())
            await asyncio.sleep(0.05)
            task.cancel()
            with self.assertRaises(asyncio.CancelledError):
                await task
            self.session.add_message("user", "not busy")
        asyncio.run(work())

    def test_cancel_from_a_thread_during_prefill_and_after_the_end(self):
        generation = self.ask(TEXT * 120)
        threading.Timer(0.05, generation.cancel).start()
        began = time.monotonic()
        events = list(generation)
        self.assertEqual(events[-1].finish_reason, orrery.FinishReason.CANCELLED)
        self.assertLess(time.monotonic() - began, 60)
        generation.close()
        generation.cancel()

    def test_cancellers_and_closers_at_once(self):
        for _ in range(30):
            generation = self.ask()
            threads = [threading.Thread(target=f) for f in (generation.cancel, generation.close, generation.cancel)]
            for thread in threads:
                thread.start()
            try:
                list(generation)
            except ValueError:
                pass  # closed meanwhile
            for thread in threads:
                thread.join()
            self.session.rewind_messages(0)

    def test_errors_have_every_field(self):
        with self.assertRaises(orrery.OutOfDeviceMemoryError) as caught:
            self.model.session(n_context=16384, kv_type=orrery.KvType.F32, policy="full").fork()
            orrery.Runtime(backend="cpu", device_budget_bytes=1 << 20).open(MODEL).session(n_context=16384, policy="full")
        error = caught.exception
        self.assertGreater(error.bytes_requested, error.bytes_available)
        self.assertEqual((error.status, error.doing), (orrery.Status.OUT_OF_DEVICE_MEMORY, "orrery_session_open"))
        with self.assertRaises(orrery.IoError) as caught:
            self.runtime.open("/nowhere")
        self.assertEqual((caught.exception.native_code, caught.exception.option), (2, ""))
        with self.assertRaises(orrery.InvalidArgumentError) as caught:
            self.model.session(speculate_tokens=9)
        self.assertEqual(caught.exception.option, "speculate_tokens")
        with self.assertRaises(orrery.UnsupportedTemplateError) as caught:
            self.session.set_template(template_source="\n {% endfor %}")
        self.assertEqual(caught.exception.line, 2)
        self.assertTrue(issubclass(orrery.BusyError, orrery.Error))

    def test_unknown_options_and_closed_handles(self):
        for wrong in ("temprature", "reserved", "struct_size", "n_stop"):
            with self.assertRaises(TypeError):
                self.session.generate(**{wrong: 1})
        self.session.close()
        self.session.close()
        with self.assertRaises(ValueError):
            self.session.tokens()
        with self.assertRaises(ValueError):
            self.model.session().add_message("user", "a\0b")

    def test_views_share_memory(self):
        self.session.evaluate([300, 301])
        logits = self.session.logits()
        self.assertEqual(memoryview(logits).nbytes, 4 * 2048)
        self.assertEqual(max(range(2048), key=lambda i: logits[i]), max(range(2048), key=lambda i: self.session.logits()[i]))
        self.assertEqual(len(array.array("f", bytes(memoryview(logits).cast("B")))), 2048)
        try:
            import numpy
        except ImportError:
            return
        self.assertIsInstance(logits, numpy.ndarray)
        self.assertEqual(logits.dtype, numpy.float32)

    def test_hook_changes_logits_in_place(self):
        def force(logits, tokens):
            logits[300] = 1e9
            seen.append(len(tokens))
        seen = []
        events = list(self.ask(logits_hook=force, max_tokens=2))
        self.assertEqual([e.token for e in events if isinstance(e, orrery.Token)], [300, 300])
        self.assertEqual(seen[1], seen[0] + 1)

    def test_log_function_outlives_its_runtime_object(self):
        lines = []
        runtime = orrery.Runtime(n_threads=1, backend="cpu", log=lambda level, message: lines.append(message), log_level=4)
        model = runtime.open(MODEL)
        runtime.close()
        del runtime
        gc.collect()
        model.session(n_context=256).close()
        self.assertTrue(all(isinstance(line, str) for line in lines))

    def test_handles_collected_in_any_order(self):
        parts = [self.runtime, self.model, self.session, self.ask()]
        self.runtime = self.model = self.session = None
        while parts:
            parts.pop(0)
            gc.collect()


if __name__ == "__main__":
    unittest.main()
