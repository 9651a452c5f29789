"""The library as ctypes sees it: loading, errors, structs from and to Python values, handles that are freed once.

The library is looked for in $ORRERY_LIBRARY, beside this file (as wheels have it), and where the system looks.
"""

from __future__ import annotations

import contextlib
import ctypes
import operator
import os
import sys
import threading
from ctypes import POINTER, byref, c_char_p, c_size_t, c_void_p, sizeof
from typing import Any, Callable, Optional

from . import _abi


def _load() -> ctypes.CDLL:
    name = "orrery.dll" if sys.platform == "win32" else "liborrery.so.0"
    here = os.path.join(os.path.dirname(os.path.abspath(__file__)), name)
    path = os.environ.get("ORRERY_LIBRARY") or (here if os.path.exists(here) else name)
    library = ctypes.CDLL(path)
    for name, (result, arguments) in _abi.FUNCTIONS.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    if library.orrery_abi_version() != _abi.ABI_VERSION:
        raise ImportError("%s has ABI %d, this package wants %d" % (path, library.orrery_abi_version(), _abi.ABI_VERSION))
    return library


lib = _load()


def new(struct: Any) -> Any:
    """A struct that its _init function has filled; the size that it writes must be ours."""
    value = struct()
    getattr(lib, struct.INIT)(byref(value), sizeof(struct))
    if value.struct_size != sizeof(struct):
        raise ImportError("%s has %d bytes in the library, %d here" % (struct.__name__, value.struct_size, sizeof(struct)))
    return value


for _struct in _abi.STRUCTS:
    if hasattr(_struct, "INIT"):
        new(_struct)


_RANGES = {kind: ((-1 << (8 * sizeof(kind) - 1), (1 << (8 * sizeof(kind) - 1)) - 1) if kind(-1).value < 0 else (0, (1 << 8 * sizeof(kind)) - 1))
           for kind in (ctypes.c_int8, ctypes.c_int16, ctypes.c_int32, ctypes.c_int64, ctypes.c_uint8, ctypes.c_uint16, ctypes.c_uint32,
                        ctypes.c_uint64, c_size_t)}


def checked(item: Any, kind: Any, name: str) -> Any:
    """A number as C takes it. ctypes would cut integers to the field's width; here they are refused, by name."""
    if kind in _RANGES:
        try:
            number = operator.index(item)
        except TypeError:
            raise TypeError("%s is %s, expected an integer" % (name, type(item).__name__)) from None
        least, most = _RANGES[kind]
        if not least <= number <= most:
            raise ValueError("%s is %d, expected %d to %d" % (name, number, least, most))
        return number
    if kind in (ctypes.c_float, ctypes.c_double):
        if isinstance(item, (str, bytes)) or not hasattr(item, "__float__") and not hasattr(item, "__index__"):
            raise TypeError("%s is %s, expected a number" % (name, type(item).__name__))
        return float(item)
    return item


def array_of(kind: Any, items: Any, name: str) -> Any:
    """Numbers as an array of C."""
    return (kind * len(items))(*[checked(item, kind, "%s[%d]" % (name, i)) for i, item in enumerate(items)])


class InMemory:
    """The bytes of an object, read-only ones too, as an argument that keeps them: nothing is copied."""

    class _View(ctypes.Structure):   # Py_buffer
        _fields_ = [("buf", c_void_p), ("obj", ctypes.py_object), ("len", ctypes.c_ssize_t), ("itemsize", ctypes.c_ssize_t),
                    ("readonly", ctypes.c_int), ("ndim", ctypes.c_int), ("format", c_char_p), ("shape", c_void_p), ("strides", c_void_p),
                    ("suboffsets", c_void_p), ("internal", c_void_p)]

    def __init__(self, data: Any) -> None:
        self._view = InMemory._View()
        get = ctypes.pythonapi.PyObject_GetBuffer
        get.argtypes, get.restype = [ctypes.py_object, c_void_p, ctypes.c_int], ctypes.c_int
        get(data, byref(self._view), 0)   # raises BufferError or TypeError
        self._held = True

    def __len__(self) -> int:
        return self._view.len

    @property
    def _as_parameter_(self) -> c_void_p:
        return c_void_p(self._view.buf)

    def __del__(self) -> None:
        if self.__dict__.pop("_held", False):
            release = ctypes.pythonapi.PyBuffer_Release
            release.argtypes, release.restype = [c_void_p], None
            release(byref(self._view))


def source_of(given: Any) -> Any:
    """An orrery_source: of a path, a Descriptor or a Memory. What C points to lives as long as the struct."""
    value = new(_abi.orrery_source)
    if hasattr(given, "fd"):
        value.kind = _abi.SourceKind.FD
        value.fd = checked(given.fd, ctypes.c_int32, "fd")
        value.fd_offset = checked(given.offset, ctypes.c_uint64, "offset")
        value.fd_bytes = checked(given.n_bytes, ctypes.c_uint64, "n_bytes")
    elif hasattr(given, "data") and not isinstance(given, (str, os.PathLike)):
        held = InMemory(given.data)
        value.kind = _abi.SourceKind.MEMORY
        value.memory, value.memory_bytes = held._as_parameter_, len(held)
        value.__dict__["held"] = held
    else:
        value.path = utf8(given, "the source")
    return value


def call(name: str, *arguments: Any) -> None:
    """Calls a function that returns a status and takes an orrery_error last; a status other than OK is raised."""
    error = new(_abi.orrery_error)
    kinds = _abi.FUNCTIONS[name][1]
    arguments = tuple(checked(a, kind, "argument %d of %s" % (i + 1, name)) if isinstance(a, (int, float)) else a
                      for i, (a, kind) in enumerate(zip(arguments, kinds)))
    status = getattr(lib, name)(*arguments, byref(error))
    if status:
        kind = _abi.ERRORS.get(status, _abi.Error)
        raised = kind(error.message.decode(), error.native_code, error.bytes_requested, error.bytes_available, error.offset,
                      error.line, error.column, error.option.decode(), name)
        if kind is _abi.Error:
            raised.status = status  # a newer library's
        raise raised


def sized(name: str, element: Any, *arguments: Any) -> Any:
    """Calls a function of the header's "Sizes out" kind: asks for the size, then for the content, as a ctypes array."""
    n = c_size_t()
    call(name, *arguments, None, 0, byref(n))
    while True:
        capacity = n.value
        buffer = (element * max(capacity, 1))()
        if hasattr(element, "INIT"):  # the first struct says how long each of them is
            buffer[0] = new(element)
        try:
            call(name, *arguments, buffer, capacity, byref(n))
        except _abi.InvalidArgumentError:
            if n.value <= capacity:
                raise
            continue  # another thread made it longer meanwhile
        return (element * n.value).from_buffer(buffer)


def utf8(text: Any, name: str = "a string") -> Optional[bytes]:
    """Text as C takes it; paths (os.PathLike) too."""
    if isinstance(text, os.PathLike):
        text = os.fspath(text)
    if isinstance(text, bytes):
        text = os.fsdecode(text)
    if text is not None and not isinstance(text, str):
        raise TypeError("%s is %s, expected str" % (name, type(text).__name__))
    if text is not None and "\0" in text:
        raise ValueError("a NUL in a string")
    return None if text is None else text.encode()


class Callbacks:
    """Python functions that C calls. An exception does not cross C: it ends the call there and is raised behind it."""

    def __init__(self) -> None:
        self.exception: Optional[BaseException] = None
        self._kept: list = []

    def wrap(self, kind: Any, function: Callable) -> Any:
        def enter(_user: Any, *arguments: Any) -> Any:
            try:
                result = function(*arguments)
                return None if kind is _abi.orrery_log_fn else int(result or 0)
            except BaseException as e:  # pylint: disable=broad-except
                self.exception = self.exception or e
                return 1
        wrapped = kind(enter)
        self._kept.append(wrapped)
        return wrapped

    def call(self, name: str, *arguments: Any) -> None:
        """call(), and behind it what a callback raised."""
        try:
            call(name, *arguments)
        finally:
            exception, self.exception = self.exception, None
            if exception is not None:
                raise exception


class Held:
    """A handle whose `pointer` is valid as long as this exists."""

    def __init__(self, handle: Handle) -> None:
        use = handle.use()
        self.pointer = use.__enter__()
        self._use = use

    def __del__(self) -> None:
        use = self.__dict__.pop("_use", None)
        if use is not None:
            use.__exit__()


class uses_of:
    """Pairs of an Adapter, or of a plan's source, and a scale, as an array of C that is valid inside `with`, or as long as this exists."""

    def __init__(self, pairs: Any) -> None:
        self._stack, self._pairs, self._kept = contextlib.ExitStack(), list(pairs), []  # type: ignore[var-annotated]

    def __enter__(self) -> Any:
        items = (_abi.orrery_adapter_use * len(self._pairs))()
        for item, (adapter, scale) in zip(items, self._pairs):
            item.scale = checked(scale, ctypes.c_float, "the scale of an adapter")
            if isinstance(adapter, Handle):
                item.adapter = self._stack.enter_context(adapter.use())
            else:
                source = source_of(adapter)
                item.source = ctypes.pointer(source)
                self._kept.append(source)
        return items

    def __exit__(self, *_: Any) -> None:
        self._stack.close()

    def __del__(self) -> None:
        self._stack.close()


def options(struct: Any, given: dict, callbacks: Callbacks, adapt: Optional[dict] = None) -> Any:
    """An options struct of the given fields; what C points to lives as long as the struct. `adapt` wraps callbacks."""
    value = new(struct)
    types = dict(struct._fields_)
    for name, item in given.items():
        if name not in types or name == "struct_size" or name.startswith("reserved") or name in struct.COUNTS.values():
            raise TypeError("%s has no option %r" % (struct.__name__, name))
        kind = types[name]
        if item is None:
            continue
        if kind is POINTER(_abi.orrery_adapter_use):
            uses = uses_of(item)  # the session keeps the adapters, and a plan reads them
            items = uses.__enter__()
            setattr(value, name, ctypes.cast(items, kind))
            setattr(value, struct.COUNTS[name], len(items))
            value.__dict__.setdefault("kept", []).extend((uses, items))
        elif name in struct.COUNTS:
            if kind is POINTER(c_char_p):
                if isinstance(item, str):
                    item = [item]
                items = (c_char_p * len(item))(*[utf8(s) for s in item])
            else:
                pairs = list(item.items() if hasattr(item, "items") else item)
                if kind._type_ is _abi.orrery_option:
                    pairs = [(utf8(k), utf8(str(v))) for k, v in pairs]
                else:
                    of = [kind_ for _, kind_ in kind._type_._fields_]
                    pairs = [tuple(checked(part, k, name) for part, k in zip(pair, of)) for pair in pairs]
                items = (kind._type_ * len(pairs))(*pairs)
            setattr(value, name, ctypes.cast(items, kind))
            setattr(value, struct.COUNTS[name], len(items))
            value.__dict__.setdefault("kept", []).append(items)
        elif kind is POINTER(_abi.orrery_source):
            source = source_of(item)
            setattr(value, name, ctypes.pointer(source))
            value.__dict__.setdefault("kept", []).append(source)
        elif name in struct.HANDLES:
            if not isinstance(item, Handle) or item._free != struct.HANDLES[name]:
                raise TypeError("%s: %r is not an open object of the kind that it takes" % (name, type(item).__name__))
            held = Held(item)
            setattr(value, name, held.pointer)
            value.__dict__.setdefault("kept", []).append(held)
        elif callable(item):
            function = adapt[name](item) if adapt and name in adapt else item
            setattr(value, name, callbacks.wrap(kind, function))
        else:
            setattr(value, name, utf8(item, name) if kind is c_char_p else checked(item, kind, name))
    value.__dict__["callbacks"] = callbacks
    return value


def result(kind: Any, name: str, *arguments: Any) -> Any:
    """Calls a function that fills a struct, and returns it as the dataclass `kind`."""
    struct = new(next(s for s in _abi.STRUCTS if s.__name__ == "orrery_" + _snake(kind.__name__)))
    call(name, *arguments, byref(struct))
    return fields_of(kind, struct)


def results(kind: Any, name: str, *arguments: Any) -> list:
    """Calls a function that fills an array of structs, and returns them as dataclasses `kind`."""
    struct = next(s for s in _abi.STRUCTS if s.__name__ == "orrery_" + _snake(kind.__name__))
    return [fields_of(kind, one) for one in sized(name, struct, *arguments)]


def fields_of(kind: Any, struct: Any) -> Any:
    """A struct of the library as the dataclass `kind`."""
    fields = {}
    for field in kind.__dataclass_fields__:
        value = getattr(struct, field)
        if isinstance(value, ctypes.Array):
            value = bytes(value)
        fields[field] = value.decode() if isinstance(value, bytes) and field != "fingerprint" else value
    return kind(**fields)


def _snake(name: str) -> str:
    return "".join("_" + c.lower() if c.isupper() else c for c in name).lstrip("_")


class Handle:
    """A handle of the library: freed once, and not while a call uses it, whichever thread closes it."""

    _free: str

    def __init__(self, pointer: c_void_p) -> None:
        self._pointer, self._calls, self._open = pointer, 0, True
        self._lock = threading.RLock()  # a collector may close it while this thread holds the lock

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    def __del__(self) -> None:
        if hasattr(self, "_lock"):
            self.close()

    @property
    def closed(self) -> bool:
        return not self._open

    def close(self) -> None:
        """Frees the handle; calls that use it just now finish first. Closing again does nothing."""
        with self._lock:
            was_open, self._open = self._open, False
            free = was_open and self._calls == 0
        if free:
            getattr(lib, self._free)(self._pointer)

    def use(self) -> "Use":
        """`with handle.use() as pointer`: the pointer stays valid inside."""
        return Use(self)


class Use:
    def __init__(self, handle: Handle) -> None:
        self._handle = handle

    def __enter__(self) -> c_void_p:
        handle = self._handle
        with handle._lock:
            if not handle._open:
                raise ValueError("%s is closed" % type(handle).__name__)
            handle._calls += 1
        return handle._pointer

    def __exit__(self, *_: Any) -> None:
        handle = self._handle
        with handle._lock:
            handle._calls -= 1
            free = handle._calls == 0 and not handle._open
        if free:
            getattr(lib, handle._free)(handle._pointer)
