"""Orrery for Python: language models with long contexts inside your program.

    import orrery
    with orrery.Runtime() as runtime, runtime.open("model.gguf") as model, model.session() as chat:
        chat.add_message("user", "Why is the sky blue?")
        for event in chat.generate(temperature=0.7):
            if isinstance(event, orrery.Text):
                print(event.text, end="", flush=True)

Options are keyword arguments, named and documented as the fields of include/orrery.h. Calls that fail raise a subclass of
orrery.Error. Every handle is a context manager; handles may be closed in any order, and are when they are collected.
Methods that compute release the interpreter's lock.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import json
import os
from ctypes import byref, c_char, c_double, c_float, c_int32, c_size_t, c_uint8, c_uint32, c_uint64, c_void_p, string_at
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, AsyncIterator, Callable, Iterator, Optional, Sequence, Tuple, Union

from . import _abi
from ._abi import *  # noqa: F401,F403  the enumerations, exceptions, options and results
from ._abi import CalibrateOptions, DeviceInfo, EmbedOptions, GenerateOptions, HeadRoles, LayerInfo, ModelInfo, ModelOptions, PlanRegion, PlanResult, RuntimeInfo
from ._abi import RuntimeOptions, SessionOptions, Stats, TemplateOptions, VocabInfo
from .forms import Function, arguments_of, schema_of, tool_of, value_of
from ._native import Callbacks, Handle, InMemory, array_of, call, checked, lib, new, options, result, results, sized, source_of, uses_of, utf8

if TYPE_CHECKING:
    from typing_extensions import Unpack


@dataclass(frozen=True)
class Descriptor:
    """A source: the open file `fd`, or `n_bytes` of it from `offset` on (0: up to its end), such as an asset of an archive. The file may be closed
    behind the call."""
    fd: int
    offset: int = 0
    n_bytes: int = 0


@dataclass(frozen=True)
class Memory:
    """A source: a whole file in memory. A model that is opened from it, its sessions and their generations keep it."""
    data: Union[bytes, bytearray, memoryview]


@dataclass(frozen=True)
class Progress:
    """`done` of `total` prompt tokens are computed."""
    done: int
    total: int


@dataclass(frozen=True)
class Token:
    """One token was chosen. `top` has the n_logprobs likeliest, as (token, logprob)."""
    token: int
    bytes: bytes
    logprob: float
    top: list[tuple[int, float]]


@dataclass(frozen=True)
class Text:
    """Whole characters of the answer."""
    text: str


@dataclass(frozen=True)
class Reasoning:
    """Whole characters of the model's reasoning; with tools or split_reasoning."""
    text: str


@dataclass(frozen=True)
class Call:
    """A call of a tool begins: the number of the call in the answer, and the tool's name."""
    call: int
    name: str


@dataclass(frozen=True)
class Arguments:
    """The next part of a call's arguments: the parts of one call are one JSON object."""
    call: int
    name: str
    text: str


@dataclass(frozen=True)
class CallEnd:
    """A call is complete: `text` has all of its arguments, as JSON."""
    call: int
    name: str
    id: str
    text: str

    def arguments(self) -> dict:
        return json.loads(self.text)


@dataclass(frozen=True)
class Other:
    """An event of a newer library."""
    type: int


@dataclass(frozen=True)
class Done:
    """The answer has ended; every later next() repeats it."""
    finish_reason: int
    stop_index: int
    prompt_tokens: int
    reused_tokens: int
    generated_tokens: int
    first_token_us: int
    prefill_us: int
    decode_us: int
    complete: bool


Event = Union[Progress, Token, Text, Reasoning, Call, Arguments, CallEnd, Other, Done]
Path = Union[str, "os.PathLike[str]"]
Source = Union[Path, Descriptor, Memory]


def abi_version() -> int:
    return lib.orrery_abi_version()


def version() -> str:
    return lib.orrery_version().decode()


def build_info() -> str:
    return lib.orrery_build_info().decode()


def status_name(status: int) -> str:
    return lib.orrery_status_name(status).decode()


def constant_name(kind: str, value: int) -> str:
    """The name of a constant, as constant_name("kv_type", 2); kind: as in orrery_KIND_name."""
    return getattr(lib, _abi.NAMES[kind])(value).decode()


def devices() -> list[DeviceInfo]:
    """The GPUs of this machine; the option `device` of a Runtime is an index of this list."""
    return [result(DeviceInfo, "orrery_device_get_info", i) for i in range(lib.orrery_devices())]


def inspect(source: Source) -> str:
    """JSON: what is in the file."""
    return bytes(sized("orrery_inspect", c_char, byref(source_of(source)))).decode()


def kv_type_bytes(kv_type: int, key_dim: int, value_dim: int) -> int:
    """Bytes of one token's K and V of one head, in a KvType."""
    return lib.orrery_kv_type_bytes(kv_type, key_dim, value_dim)


def policies() -> str:
    """JSON: the table of KV policies."""
    return bytes(sized("orrery_policies", c_char)).decode()


def head_profile_import(profile_json: str) -> str:
    return bytes(sized("orrery_head_profile_import", c_char, utf8(profile_json))).decode()


def head_profile_import_gates(gates: str, sparsity: float) -> str:
    return bytes(sized("orrery_head_profile_import_gates", c_char, utf8(gates), c_double(sparsity))).decode()


def plan(source: Source, runtime: Optional[RuntimeOptions] = None, model: Optional[ModelOptions] = None,
         session: Optional[SessionOptions] = None) -> PlanResult:
    """What a model and a session would take, from the file's header alone. Options are dicts."""
    return result(PlanResult, "orrery_plan", byref(source_of(source)), *[byref(o) for o in _of_plan(runtime, model, session)])


def plan_regions(source: Source, runtime: Optional[RuntimeOptions] = None, model: Optional[ModelOptions] = None,
                 session: Optional[SessionOptions] = None) -> list[PlanRegion]:
    """The same region by region: its sums are those of `plan`."""
    return results(PlanRegion, "orrery_plan_regions", byref(source_of(source)), *[byref(o) for o in _of_plan(runtime, model, session)])


def _of_plan(*given: Any) -> list:
    callbacks = Callbacks()
    structs = (_abi.orrery_runtime_options, _abi.orrery_model_options, _abi.orrery_session_options)
    return [options(s, dict(o or {}), callbacks) for s, o in zip(structs, given)]


class Runtime(Handle):
    """Threads, the device and its arena. `log(level, message)` must not raise: what it raises is dropped."""
    _free = "orrery_runtime_free"

    def __init__(self, **given: "Unpack[RuntimeOptions]") -> None:
        callbacks, pointer = Callbacks(), c_void_p()
        adapt = {"log": lambda f: lambda level, message: f(level, message.decode(errors="replace"))}
        self._options = options(_abi.orrery_runtime_options, dict(given), callbacks, adapt)
        callbacks.call("orrery_runtime_create", byref(self._options), byref(pointer))
        super().__init__(pointer)

    def info(self) -> RuntimeInfo:
        with self.use() as pointer:
            return result(RuntimeInfo, "orrery_runtime_get_info", pointer)

    def open(self, source: Source, **given: "Unpack[ModelOptions]") -> "Model":
        """Opens a GGUF file: of a path, a Descriptor or a Memory. `progress(done, total)` cancels by returning something other than 0 or None."""
        callbacks, model, struct = Callbacks(), c_void_p(), source_of(source)
        with self.use() as pointer:
            callbacks.call("orrery_model_open", pointer, byref(struct),
                           byref(options(_abi.orrery_model_options, dict(given), callbacks)), byref(model))
        return Model(model, self, struct)

    def set_threads(self, n_threads: int, priority: int = 0) -> None:
        """Changes the number of threads and their Priority between two steps; 0: the default number."""
        with self.use() as pointer:
            call("orrery_runtime_set_threads", pointer, n_threads, priority)


class Vocab(Handle):
    """Tokenizer and chat template on their own."""
    _free = "orrery_vocab_free"

    def __init__(self, source: Union[Source, c_void_p]) -> None:
        pointer = source if isinstance(source, c_void_p) else c_void_p()
        if not isinstance(source, c_void_p):
            call("orrery_vocab_open", byref(source_of(source)), byref(pointer))
        super().__init__(pointer)

    def info(self) -> VocabInfo:
        with self.use() as pointer:
            return result(VocabInfo, "orrery_vocab_get_info", pointer)

    def tokenize(self, text: Union[str, bytes], flags: int = 0) -> list[int]:
        data = text.encode() if isinstance(text, str) else bytes(memoryview(text))
        with self.use() as pointer:
            return list(sized("orrery_tokenize", c_int32, pointer, data, len(data), flags))

    def detokenize(self, tokens: Sequence[int], flags: int = 0) -> bytes:
        """The bytes that the tokens stand for, possibly ending inside a character."""
        with self.use() as pointer:
            return bytes(sized("orrery_detokenize", c_char, pointer, array_of(c_int32, tokens, "tokens"), len(tokens), flags))

    def token_flags(self, token: int) -> int:
        with self.use() as pointer:
            return lib.orrery_token_flags(pointer, token)

    def matcher(self, schema: Any = None, **given: "Unpack[GenerateOptions]") -> "Matcher":
        """A grammar over these tokens: a schema, or the grammar options of Session.generate()."""
        matcher = c_void_p()
        struct = options(_abi.orrery_generate_options, _formed(schema, dict(given)), Callbacks())
        with self.use() as pointer:
            call("orrery_matcher_create", pointer, byref(struct), byref(matcher))
        return Matcher(matcher)

    def render_chat(self, messages_json: str, **given: "Unpack[TemplateOptions]") -> str:
        with self.use() as pointer:
            struct = options(_abi.orrery_template_options, dict(given), Callbacks())
            return bytes(sized("orrery_render_chat", c_char, pointer, utf8(messages_json), byref(struct))).decode()

    def chat_format(self, **given: "Unpack[TemplateOptions]") -> dict:
        """How the template has reasoning and calls of tools written; "calls" is None where "why_none" says why."""
        with self.use() as pointer:
            struct = options(_abi.orrery_template_options, dict(given), Callbacks())
            return json.loads(bytes(sized("orrery_chat_format", c_char, pointer, byref(struct))).decode())


class Matcher(Handle):
    """A grammar and a place in it, for samplers of your own and for checks. One thread at a time."""
    _free = "orrery_matcher_free"

    def mask(self) -> list[int]:
        """Bit i of word w: token 32 w + i may come next."""
        with self.use() as pointer:
            return list(sized("orrery_matcher_mask", c_uint32, pointer))

    def accept(self, tokens: Sequence[int]) -> int:
        """Goes on with the first tokens that are allowed. Returns how many."""
        n = c_size_t()
        with self.use() as pointer:
            call("orrery_matcher_accept", pointer, array_of(c_int32, tokens, "tokens"), len(tokens), byref(n))
        return n.value

    def rewind(self, n_tokens: int) -> None:
        """Goes back to the first n_tokens accepted ones."""
        with self.use() as pointer:
            call("orrery_matcher_rewind", pointer, n_tokens)

    def forced(self) -> list[int]:
        """Tokens of the text that follows in any case."""
        with self.use() as pointer:
            return list(sized("orrery_matcher_forced", c_int32, pointer))

    def match(self, text: Union[str, bytes]) -> tuple[int, bool]:
        """How many bytes of a text can begin an answer, and whether the whole text is one."""
        data, matched, complete = text.encode() if isinstance(text, str) else bytes(text), c_size_t(), c_uint32()
        with self.use() as pointer:
            call("orrery_matcher_match", pointer, data, len(data), byref(matched), byref(complete))
        return matched.value, bool(complete.value)

    def describe(self) -> str:
        """JSON: rules, states, bytes, and notices of what does not constrain."""
        with self.use() as pointer:
            return bytes(sized("orrery_matcher_describe", c_char, pointer)).decode()


class Model(Handle):
    """Immutable; any number of threads may use it."""
    _free = "orrery_model_free"

    def __init__(self, pointer: c_void_p, runtime: Runtime, memory: Any = None) -> None:
        super().__init__(pointer)
        self._memory = memory  # where the weights are; sessions keep their model
        self._runtime_options = runtime._options  # the log function lives as long as what may call it

    def info(self) -> ModelInfo:
        with self.use() as pointer:
            return result(ModelInfo, "orrery_model_get_info", pointer)

    def layer(self, i: int) -> LayerInfo:
        """Layer i, from 0 to n_layers - 1: layers may differ in their heads, windows, states and experts."""
        with self.use() as pointer:
            return result(LayerInfo, "orrery_model_layer_info", pointer, i)

    def experts(self) -> ExpertsInfo:
        """Where a mixture's experts lie, and what the link brought."""
        with self.use() as pointer:
            return result(ExpertsInfo, "orrery_model_experts", pointer)

    def streaming(self) -> StreamingInfo:
        """The layers that lie in host memory, and what the link brought of them."""
        with self.use() as pointer:
            return result(StreamingInfo, "orrery_model_streaming", pointer)

    def vocab(self) -> Vocab:
        with self.use() as pointer:
            vocab = lib.orrery_model_vocab(pointer)
        if not vocab:
            raise _abi.OutOfHostMemoryError("no memory for a vocabulary", doing="orrery_model_vocab")
        return Vocab(c_void_p(vocab))

    def adapter(self, source: Source) -> "Adapter":
        """Opens a LoRA adapter of the model: of a path, a Descriptor or a Memory, which may go afterwards."""
        adapter = c_void_p()
        with self.use() as pointer:
            call("orrery_adapter_open", pointer, byref(source_of(source)), byref(adapter))
        return Adapter(adapter)

    def session(self, **given: "Unpack[SessionOptions]") -> "Session":
        """A new conversation. `policy_options` is a dict of names and values; `adapters` are pairs of an Adapter and its scale."""
        session, struct = c_void_p(), options(_abi.orrery_session_options, dict(given), Callbacks())
        with self.use() as pointer:
            call("orrery_session_open", pointer, byref(struct), byref(session))
        return Session(session, self, given.get("draft_model"))  # type: ignore[arg-type]

    def embed(self, texts: Union[str, Sequence[str]], **given: "Unpack[EmbedOptions]") -> Embeddings:
        """Vectors of texts: views as floats() gives them. `progress(done, total)` cancels by returning something other than 0 or None."""
        items, callbacks = _texts(texts), Callbacks()
        struct = options(_abi.orrery_embed_options, dict(given), callbacks)
        n, n_tokens = c_size_t(), (c_uint32 * len(items))()
        with self.use() as pointer:
            call("orrery_embed", pointer, items, len(items), byref(struct), None, 0, byref(n), None)
            buffer = (c_float * n.value)()
            callbacks.call("orrery_embed", pointer, items, len(items), byref(struct), buffer, n.value, byref(n), n_tokens)
        size = struct.n_dimensions or self.info().n_embd
        rows = floats(buffer) if n.value else []
        return Embeddings([rows[i:i + size] for i in range(0, n.value, size)], list(n_tokens))

    def rank(self, query: str, texts: Union[str, Sequence[str]], **given: "Unpack[EmbedOptions]") -> list[float]:
        """How well each text answers the query: more is better. The model must have a reranker's head (ModelInfo.purpose)."""
        items, callbacks = _texts(texts), Callbacks()
        scores = (c_float * len(items))()
        with self.use() as pointer:
            callbacks.call("orrery_rank", pointer, utf8(query, "query"), items, len(items),
                           byref(options(_abi.orrery_embed_options, dict(given), callbacks)), scores, len(items), None)
        return list(scores)

    def calibrate(self, texts: Sequence[Sequence[int]], **given: "Unpack[CalibrateOptions]") -> "Calibration":
        """Finds out which heads attend alike, from texts as tokens."""
        callbacks, calibration = Callbacks(), c_void_p()
        tokens = [t for text in texts for t in text]
        with self.use() as pointer:
            callbacks.call("orrery_calibrate", pointer, array_of(c_int32, tokens, "tokens"),
                           (c_size_t * len(texts))(*[len(text) for text in texts]), len(texts),
                           byref(options(_abi.orrery_calibrate_options, dict(given), callbacks)), byref(calibration))
        return Calibration(calibration)


class Adapter(Handle):
    """A LoRA adapter of a model. Sessions keep the adapters that they have."""
    _free = "orrery_adapter_free"


class Folder(Handle):
    """A folder of saved sessions with a budget in bytes; 0: no limit. Sessions with the option `folder` find their prompts' beginnings there."""
    _free = "orrery_folder_free"

    def __init__(self, path: Path, max_bytes: int = 0) -> None:
        folder = c_void_p()
        call("orrery_folder_open", utf8(path), checked(max_bytes, c_uint64, "max_bytes"), byref(folder))
        super().__init__(folder)

    def save(self, session: "Session", name: Optional[str] = None) -> None:
        """Without a name, the entry takes the place of shorter ones of the same prompt."""
        with self.use() as pointer, _session(session).use() as of:
            call("orrery_folder_save", pointer, of, utf8(name))

    def load(self, session: "Session", name: str) -> None:
        with self.use() as pointer, _session(session).use() as of:
            call("orrery_folder_load", pointer, of, utf8(name))

    def remove(self, name: str) -> None:
        with self.use() as pointer:
            call("orrery_folder_remove", pointer, utf8(name))

    def list(self) -> "list[dict[str, Any]]":
        """The entries, the last used first."""
        with self.use() as pointer:
            return json.loads(bytes(sized("orrery_folder_list", c_char, pointer)))  # type: ignore[no-any-return]


def _session(session: Any) -> "Session":
    if not isinstance(session, Session):
        raise TypeError("session: %r is not a Session" % type(session).__name__)
    return session


@dataclass(frozen=True)
class Embeddings:
    """Vectors in the order of the texts, one of each text or, without pooling, of each token; and the number of each text's tokens."""
    vectors: list
    n_tokens: list[int]


class Calibration(Handle):
    _free = "orrery_calibration_free"

    def profile(self) -> str:
        """JSON for the session option `head_profile`."""
        with self.use() as pointer:
            return bytes(sized("orrery_calibration_profile", c_char, pointer)).decode()

    def steps(self) -> str:
        with self.use() as pointer:
            return bytes(sized("orrery_calibration_steps", c_char, pointer)).decode()


def _texts(texts: Union[str, Sequence[str]]) -> Any:
    """Texts as an array of C, which keeps their bytes."""
    given = [texts] if isinstance(texts, str) else texts
    return (ctypes.c_char_p * len(given))(*[utf8(text, "a text") for text in given])


def _formed(schema: Any, given: dict) -> dict:
    if schema is None:
        return given
    if given.get("grammar") is not None:
        raise TypeError("give schema or grammar, not both")
    return {**given, "grammar": schema_of(schema), "grammar_kind": _abi.Grammar.JSON_SCHEMA}


def floats(buffer: Any) -> Any:
    """A view of floats: a NumPy array where NumPy is installed, else a memoryview. Nothing is copied."""
    try:
        import numpy  # type: ignore[import-not-found,unused-ignore]
    except ImportError:
        return memoryview(buffer).cast("B").cast("f")
    return numpy.frombuffer(buffer, dtype=numpy.float32)


class Session(Handle):
    """One sequence of tokens, its KV cache and the conversation. It belongs to one thread at a time."""
    _free = "orrery_session_free"

    def __init__(self, pointer: c_void_p, model: Model, draft: Optional[Model] = None) -> None:
        super().__init__(pointer)
        self._model, self._draft = model, draft  # either may lie in memory of its own
        info = model.info()
        self._n_vocab, self._n_embd = info.n_vocab, info.n_embd

    def add_message(self, role: str, content: str) -> None:
        with self.use() as pointer:
            call("orrery_session_add_message", pointer, utf8(role), utf8(content))

    def add_message_json(self, message_json: str) -> None:
        with self.use() as pointer:
            call("orrery_session_add_message_json", pointer, utf8(message_json))

    def n_messages(self) -> int:
        with self.use() as pointer:
            return lib.orrery_session_n_messages(pointer)

    def message(self, i: int) -> str:
        """Message i as JSON."""
        with self.use() as pointer:
            return bytes(sized("orrery_session_message", c_char, pointer, i)).decode()

    def set_template(self, **given: "Unpack[TemplateOptions]") -> None:
        with self.use() as pointer:
            call("orrery_session_set_template", pointer,
                 byref(options(_abi.orrery_template_options, dict(given), Callbacks())))

    def rewind_messages(self, n_messages: int) -> None:
        with self.use() as pointer:
            call("orrery_session_rewind_messages", pointer, n_messages)

    def n_tokens(self) -> int:
        with self.use() as pointer:
            return lib.orrery_session_n_tokens(pointer)

    def tokens(self) -> list[int]:
        with self.use() as pointer:
            return list(sized("orrery_session_tokens", c_int32, pointer))

    def rewind(self, n_tokens: int) -> None:
        with self.use() as pointer:
            call("orrery_session_rewind", pointer, n_tokens)

    def set_adapters(self, adapters: "Sequence[tuple[Adapter, float]]") -> None:
        """Replaces the session's adapters: pairs of an adapter and its scale. Where the list changes, the session drops its tokens."""
        with self.use() as pointer, uses_of(adapters) as uses:
            call("orrery_session_set_adapters", pointer, uses, len(uses))

    def fork(self) -> "Session":
        fork = c_void_p()
        with self.use() as pointer:
            call("orrery_session_fork", pointer, byref(fork))
        return Session(fork, self._model, self._draft)

    def cancel(self) -> None:
        """Cancels what the session does now, a generation or a long call; from any thread. What begins later is not cancelled."""
        try:
            with self.use() as pointer:
                lib.orrery_session_cancel(pointer)
        except ValueError:
            pass

    def save(self, path: Path) -> None:
        with self.use() as pointer:
            call("orrery_session_save", pointer, utf8(path))

    def load(self, path: Path) -> None:
        with self.use() as pointer:
            call("orrery_session_load", pointer, utf8(path))

    def save_buffer(self) -> bytes:
        with self.use() as pointer:
            return bytes(sized("orrery_session_save_buffer", c_uint8, pointer))

    def load_buffer(self, data: Union[bytes, bytearray, memoryview]) -> None:
        with self.use() as pointer:
            held = InMemory(data)
            call("orrery_session_load_buffer", pointer, held, len(held))

    def evaluate(self, tokens: Sequence[int], logits: bool = False) -> Any:
        """Appends tokens; with `logits` returns (n_tokens * n_vocab) of them, as floats() has them."""
        buffer = (c_float * (len(tokens) * self._n_vocab))() if logits else None
        with self.use() as pointer:
            call("orrery_session_evaluate", pointer, array_of(c_int32, tokens, "tokens"), len(tokens), buffer)
        return floats(buffer) if logits else None

    def logits(self) -> Any:
        """(n_vocab) of the last computed token, as floats() has them."""
        buffer = (c_float * self._n_vocab)()
        with self.use() as pointer:
            call("orrery_session_logits", pointer, buffer, self._n_vocab)
        return floats(buffer)

    def embedding(self) -> Any:
        """(n_embd): the final hidden state of the last computed token."""
        buffer = (c_float * self._n_embd)()
        with self.use() as pointer:
            call("orrery_session_embedding", pointer, buffer, self._n_embd)
        return floats(buffer)

    def stats(self) -> Stats:
        with self.use() as pointer:
            return result(Stats, "orrery_session_stats", pointer)

    def head_roles(self) -> HeadRoles:
        """How many KV heads have which of HeteroCache's roles."""
        with self.use() as pointer:
            return result(HeadRoles, "orrery_session_head_roles", pointer)

    def residency(self) -> list[int]:
        """(n_layers, n_kv_heads), flat: the tokens that each KV head holds on the device."""
        with self.use() as pointer:
            return list(sized("orrery_session_residency", c_uint32, pointer))

    def ask(self, question: str, **given: "Unpack[GenerateOptions]") -> str:
        """Adds a user's message and returns the whole answer's text. An answer that fails leaves the message in the conversation."""
        self.add_message("user", question)
        return "".join(self.generate(**given).text())

    def run_tools(self, *functions: "Union[Function, Callable[..., Any]]", most_turns: int = 8, template: Optional[dict] = None, **given: "Unpack[GenerateOptions]") -> str:
        """Answers the conversation with functions that the model may call: their names, docstrings and annotations are the tools, or a
        Function says them. Calls are run, and their results are messages, until an answer calls nothing; that answer's text is returned. A function's exception is its
        result, as text. `tools` chooses as in generate() (default AUTO); after the first answer it is AUTO, in the last turn NONE. This sets
        the session's template to the file's with these tools, and with `template` (options of set_template())."""
        if most_turns < 1:
            raise ValueError("most_turns is %d: at least one answer is needed" % most_turns)
        described = [tool_of(function) for function in functions]
        by_name = {tool["function"]["name"]: function for tool, function in zip(described, functions)}
        self.set_template(**{**(template or {}), "tools_json": json.dumps(described, ensure_ascii=False)})
        given.setdefault("tools", _abi.Tools.AUTO)
        text = ""
        for turn in range(most_turns):
            if turn > 0:
                given["tools"] = _abi.Tools.AUTO
            if turn == most_turns - 1:
                given["tools"] = _abi.Tools.NONE
            if turn > 0 or turn == most_turns - 1:
                given.pop("tool_name", None)
            text, calls = "", []
            for event in self.generate(**given):
                if isinstance(event, Text):
                    text += event.text
                elif isinstance(event, CallEnd):
                    calls.append(event)
                elif isinstance(event, Done) and event.finish_reason == _abi.FinishReason.CANCELLED:
                    calls = []  # nobody waits for their results
            if not calls:
                break
            for made in calls:
                function = by_name[made.name]
                try:
                    run = function.run if isinstance(function, Function) else function
                    value = run(**arguments_of(function, made.arguments()))
                except Exception as error:  # the model is told
                    value = "%s: %s" % (type(error).__name__, error)
                content = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
                self.add_message_json(json.dumps({"role": "tool", "tool_call_id": made.id, "name": made.name, "content": content},
                                                 ensure_ascii=False))
        return text

    def generate(self, schema: Any = None, **given: "Unpack[GenerateOptions]") -> "Generation":
        """Begins the answer to the conversation. `logits_hook(logits, tokens)` may change logits in place, and cancels by
        returning something other than 0 or None. `schema` is the answer's form (see `forms`): a JSON schema as a dict or text, a
        dataclass or another type; Generation.value() then returns the value. Say in the prompt what you want: the schema is not in it."""
        return self._begin("orrery_generate", (), schema, dict(given))

    def generate_tokens(self, tokens: Sequence[int], schema: Any = None, **given: "Unpack[GenerateOptions]") -> "Generation":
        """Begins a continuation of exactly these tokens."""
        return self._begin("orrery_generate_tokens", (array_of(c_int32, tokens, "tokens"), len(tokens)), schema, dict(given))

    def _begin(self, name: str, tokens: tuple, schema: Any, given: dict) -> "Generation":
        given = _formed(schema, given)
        def adapt_hook(hook: Callable) -> Callable:
            def enter(logits: int, n_vocab: int, tokens: int, n_tokens: int) -> Any:
                if not isinstance(logits, int):
                    logits, tokens = (ctypes.cast(p, c_void_p).value or 0 for p in (logits, tokens))
                # Copies: a hook may keep what it was given, and the library's memory is another's after the call.
                ids = (c_int32 * n_tokens)()
                ctypes.memmove(ids, tokens, 4 * n_tokens)
                own = (c_float * n_vocab)()
                ctypes.memmove(own, logits, 4 * n_vocab)
                answer = hook(floats(own), memoryview(ids).cast("B").cast("i"))
                ctypes.memmove(logits, own, 4 * n_vocab)
                return answer
            return enter
        callbacks, generation = Callbacks(), c_void_p()
        struct = options(_abi.orrery_generate_options, given, callbacks, {"logits_hook": adapt_hook})
        with self.use() as pointer:
            call(name, pointer, *tokens, byref(struct), byref(generation))
        return Generation(generation, self, callbacks, schema)


class Generation(Handle):
    """One answer under way. Iterating (also with `async for`) yields its events; leaving the loop, however, frees it."""
    _free = "orrery_generation_free"

    def __init__(self, pointer: c_void_p, session: Session, callbacks: Callbacks, schema: Any = None) -> None:
        super().__init__(pointer)
        self._session, self._callbacks, self._schema = session, callbacks, schema

    def next(self) -> Event:
        """Works until there is something to tell. Behind the end it repeats Done."""
        event = new(_abi.orrery_event)
        with self.use() as pointer:
            self._callbacks.call("orrery_next", pointer, byref(event))
            return _event(event)

    def run(self, on_event: Callable[[Event], Any]) -> None:
        """Hands every event to on_event, which cancels by returning something other than 0 or None."""
        on = self._callbacks.wrap(_abi.orrery_event_fn, lambda event: on_event(_event(event.contents)))
        with self.use() as pointer:
            self._callbacks.call("orrery_run", pointer, on, None)

    def cancel(self) -> None:
        """From any thread, also when the generation has ended or is closed: the next event is then Done."""
        try:
            with self.use() as pointer:
                lib.orrery_cancel(pointer)
        except ValueError:
            pass

    def text(self) -> Iterator[str]:
        """The answer's text alone."""
        for event in self:
            if isinstance(event, Text):
                yield event.text

    def value(self) -> Any:
        """Runs to the end and returns the value of the answer's schema: an instance of the dataclass or type, or what json.loads() gives.
        ValueError: the answer was cut before it was whole; its text is the exception's second argument."""
        if self._schema is None:
            raise TypeError("value() needs generate(schema=...)")
        text, complete = "", False
        for event in self:
            if isinstance(event, Text):
                text += event.text
            elif isinstance(event, Done):
                complete = event.complete
        if not complete:
            raise ValueError("the answer was cut before it was whole", text)
        return value_of(self._schema, text)

    def __iter__(self) -> Iterator[Event]:
        try:
            while True:
                event = self.next()
                yield event
                if isinstance(event, Done):
                    return
        finally:
            self.close()

    def __aiter__(self) -> AsyncIterator[Event]:
        return _AsyncEvents(self)


def events_of(generations: Sequence[Generation]) -> Iterator[Tuple[Generation, Event]]:
    """The events of several generations, pulled by this thread, each with its generation, until all are over. Generations on one
    model share their steps. An exception belongs to one generation and ends the iteration; calling it again with the others goes on."""
    which = c_size_t(len(generations))
    while True:
        event = new(_abi.orrery_event)
        with contextlib.ExitStack() as uses:
            pointers = [uses.enter_context(g.use()) for g in generations]
            handles = (c_void_p * len(pointers))(*pointers)
            try:
                call("orrery_next_any", handles, len(pointers), byref(which), byref(event))
            finally:
                raised = next((g for g in generations if g._callbacks.exception is not None), None)
                if raised is not None:
                    exception, raised._callbacks.exception = raised._callbacks.exception, None
                    raise exception
            if which.value == len(generations):
                return
            told = _event(event)
        yield generations[which.value], told


class _AsyncEvents:
    """Each event is waited for on a thread of the loop's executor. An async generator would be closed a turn of the loop
    after `break`; this is freed with its last reference, at once."""

    def __init__(self, generation: Generation) -> None:
        self._generation, self._ended = generation, False

    def __aiter__(self) -> "_AsyncEvents":
        return self

    async def __anext__(self) -> Event:
        if self._ended:
            self._generation.close()
            raise StopAsyncIteration
        work = asyncio.get_running_loop().run_in_executor(None, self._generation.next)
        try:
            event = await asyncio.shield(work)
        except asyncio.CancelledError:
            self._generation.cancel()
            await asyncio.wait([work])  # within a layer
            self._generation.close()
            raise
        self._ended = isinstance(event, Done)
        return event

    def __del__(self) -> None:
        self._generation.close()


def _event(e: Any) -> Event:
    if e.type == _abi.EventType.PROGRESS:
        return Progress(e.done, e.total)
    data = string_at(e.text, e.text_bytes) if e.text_bytes else b""
    if e.type == _abi.EventType.TOKEN:
        return Token(e.token, data, e.logprob, [(e.top[i].token, e.top[i].logprob) for i in range(e.n_top)])
    if e.type == _abi.EventType.TEXT:
        return Text(data.decode())
    if e.type == _abi.EventType.REASONING:
        return Reasoning(data.decode())
    if e.type == _abi.EventType.CALL:
        return Call(e.call, e.name.decode())
    if e.type == _abi.EventType.ARGUMENTS:
        return Arguments(e.call, e.name.decode(), data.decode())
    if e.type == _abi.EventType.CALL_END:
        return CallEnd(e.call, e.name.decode(), e.call_id.decode(), data.decode())
    if e.type != _abi.EventType.DONE:
        return Other(e.type)
    return Done(e.finish_reason, e.stop_index, e.prompt_tokens,
                e.reused_tokens, e.generated_tokens, e.first_token_us, e.prefill_us, e.decode_us, bool(e.complete))
