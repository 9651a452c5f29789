"""Answers of a given form: JSON schemas of Python types, and values of those types from an answer's text.

A form is a JSON schema as a dict or as text, a dataclass, any type that annotations can spell (list[int], Literal["a", "b"],
Optional[City], an Enum), or a class with model_json_schema() and model_validate_json() such as pydantic's.
"""

import dataclasses
import enum
import inspect
import json
import types
import typing
from typing import Any


@dataclasses.dataclass
class Function:
    """A tool whose schema is given: run(**arguments) gets what the schema lets through. Without `parameters` there are none."""
    name: str
    description: str
    run: typing.Callable[..., Any]
    parameters: dict = dataclasses.field(default_factory=lambda: {"type": "object", "properties": {}})


_SCALARS = {str: "string", int: "integer", float: "number", bool: "boolean", type(None): "null"}
_UNIONS = (typing.Union, getattr(types, "UnionType", typing.Union))


def schema_of(form: Any) -> str:
    """The JSON schema of a form, as text."""
    if isinstance(form, str):
        return form
    if isinstance(form, dict):
        return json.dumps(form, ensure_ascii=False)
    if hasattr(form, "model_json_schema"):
        return json.dumps(form.model_json_schema(), ensure_ascii=False)
    definitions: dict = {}
    schema = _schema(form, definitions)
    if definitions:
        schema = {**schema, "$defs": definitions}
    return json.dumps(schema, ensure_ascii=False)


def value_of(form: Any, text: str) -> Any:
    """The value that a whole answer under this form stands for. ValueError: the text is not JSON."""
    if hasattr(form, "model_validate_json"):
        return form.model_validate_json(text)
    value = json.loads(text)
    return value if isinstance(form, (str, dict)) else _value(form, value)


def tool_of(function: Any) -> dict:
    """A function as a tool: its name, its docstring, and a schema of its annotated parameters."""
    if isinstance(function, Function):
        return {"type": "function", "function": {"name": function.name, "description": function.description, "parameters": function.parameters}}
    definitions: dict = {}
    properties, required = {}, []
    for name, parameter, hint in _parameters(function):
        properties[name] = _schema(hint, definitions)
        if parameter.default is inspect.Parameter.empty:
            required.append(name)
    parameters = {"type": "object", "properties": properties, "required": required}
    if definitions:
        parameters["$defs"] = definitions
    described = {"name": function.__name__, "description": inspect.getdoc(function) or function.__name__, "parameters": parameters}
    return {"type": "function", "function": described}


def arguments_of(function: Any, values: dict) -> dict:
    """A call's arguments as the function's annotations want them."""
    if isinstance(function, Function):
        return values
    hints = {name: hint for name, _, hint in _parameters(function)}
    return {name: _value(hints[name], value) for name, value in values.items()}


def _parameters(function: Any) -> list:
    hints = typing.get_type_hints(function)
    found = []
    for name, parameter in inspect.signature(function).parameters.items():
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            raise TypeError("%s: a tool's parameters have names; %s has none" % (function.__name__, parameter))
        if name not in hints:
            raise TypeError("%s: parameter %s has no annotation, so its schema is unknown" % (function.__name__, name))
        found.append((name, parameter, hints[name]))
    return found


def _is_dataclass(form: Any) -> bool:
    return isinstance(form, type) and dataclasses.is_dataclass(form)


def _schema(form: Any, definitions: dict) -> dict:
    origin, arguments = typing.get_origin(form), typing.get_args(form)
    if form is Any:
        return {}
    if isinstance(form, type) and form in _SCALARS:
        return {"type": _SCALARS[form]}
    if form is None:
        return {"type": "null"}
    if origin is typing.Annotated:
        return _schema(arguments[0], definitions)
    if origin is typing.Literal:
        return {"enum": list(arguments)}
    if origin in _UNIONS:
        return {"anyOf": [_schema(a, definitions) for a in arguments]}
    if form is list or origin is list:
        return {"type": "array", "items": _schema(arguments[0], definitions)} if arguments else {"type": "array"}
    if origin is tuple:
        if len(arguments) == 2 and arguments[1] is ...:
            return {"type": "array", "items": _schema(arguments[0], definitions)}
        parts = [_schema(a, definitions) for a in arguments]
        return {"type": "array", "prefixItems": parts, "minItems": len(parts), "maxItems": len(parts)}
    if form is dict or origin is dict:
        if arguments and arguments[0] is not str:
            raise TypeError("keys of JSON objects are str, not %r" % (arguments[0],))
        return {"type": "object", "additionalProperties": _schema(arguments[1], definitions)} if arguments else {"type": "object"}
    if isinstance(form, type) and issubclass(form, enum.Enum):
        return {"enum": [member.value for member in form]}
    if _is_dataclass(form):
        return _reference(form, definitions)
    raise TypeError("no JSON schema for %r: give a dict, a dataclass, or a type of str, int, float, bool, None, list, tuple, dict, Literal, "
                    "Optional, Union and Enum" % (form,))


def _reference(form: Any, definitions: dict) -> dict:
    name = form.__qualname__.replace(".<locals>.", ".")
    if name not in definitions:
        definitions[name] = {}  # a class may hold itself
        hints = typing.get_type_hints(form)
        fields = [f for f in dataclasses.fields(form) if f.init]
        definitions[name] = {
            "type": "object", "properties": {f.name: _schema(hints[f.name], definitions) for f in fields},
            "required": [f.name for f in fields if f.default is dataclasses.MISSING and f.default_factory is dataclasses.MISSING],
            "additionalProperties": False}
    return {"$ref": "#/$defs/" + name}


def _value(form: Any, value: Any) -> Any:
    origin, arguments = typing.get_origin(form), typing.get_args(form)
    if origin is typing.Annotated:
        return _value(arguments[0], value)
    if origin in _UNIONS:
        for argument in arguments:
            if _fits(argument, value):
                return _value(argument, value)
    if form is float and isinstance(value, int):
        return float(value)
    if origin is list and arguments:
        return [_value(arguments[0], v) for v in value]
    if origin is tuple:
        of = [arguments[0]] * len(value) if len(arguments) == 2 and arguments[1] is ... else arguments
        return tuple(_value(a, v) for a, v in zip(of, value))
    if origin is dict and arguments:
        return {k: _value(arguments[1], v) for k, v in value.items()}
    if isinstance(form, type) and issubclass(form, enum.Enum):
        return form(value)
    if _is_dataclass(form):
        hints = typing.get_type_hints(form)
        return form(**{name: _value(hints[name], v) for name, v in value.items()})
    return value


def _fits(form: Any, value: Any) -> bool:
    """Whether a union's member is what this value was written for."""
    origin, arguments = typing.get_origin(form), typing.get_args(form)
    if form is Any:
        return True
    if origin is typing.Annotated:
        return _fits(arguments[0], value)
    if form is None or form is type(None):
        return value is None
    if form is float:
        return isinstance(value, (int, float)) and not isinstance(value, bool)
    if form is int:
        return isinstance(value, int) and not isinstance(value, bool)
    if form in (str, bool):
        return isinstance(value, form)
    if origin is typing.Literal:
        return any(value == a and type(value) is type(a) for a in arguments)
    if origin in _UNIONS:
        return any(_fits(a, value) for a in arguments)
    if form is list or origin in (list, tuple):
        if not isinstance(value, list):
            return False
        if not arguments:
            return True
        of = arguments if origin is tuple and arguments[-1] is not ... else arguments[:1] * len(value)
        return len(of) == len(value) and all(_fits(a, v) for a, v in zip(of, value))
    if form is dict or origin is dict:
        return isinstance(value, dict) and (not arguments or all(_fits(arguments[1], v) for v in value.values()))
    if isinstance(form, type) and issubclass(form, enum.Enum):
        return any(value == member.value for member in form)
    if _is_dataclass(form) and isinstance(value, dict):
        hints = typing.get_type_hints(form)
        required = {f.name for f in dataclasses.fields(form) if f.init and f.default is dataclasses.MISSING and f.default_factory is dataclasses.MISSING}
        return required <= set(value) <= set(hints) and all(_fits(hints[k], v) for k, v in value.items())
    return False
