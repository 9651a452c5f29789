"""Schemas of Python types, and values of them back. Needs no library; with one, answers of the demo model."""

import dataclasses
import enum
import json
import os
import sys
import unittest
from typing import Any, Dict, List, Literal, Optional, Tuple, Union

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, ".."))

from orrery.forms import arguments_of, schema_of, tool_of, value_of  # noqa: E402


class Color(enum.Enum):
    RED = "red"
    BLUE = "blue"


@dataclasses.dataclass
class City:
    name: str
    size: int
    color: Optional[Color] = None
    near: "List[City]" = dataclasses.field(default_factory=list)


@dataclasses.dataclass
class Point:
    at: Tuple[float, float]
    kind: Literal["a", "b"] = "a"


class Forms(unittest.TestCase):
    def both_ways(self, form: Any, text: str, value: Any) -> None:
        json.loads(schema_of(form))
        self.assertEqual(value_of(form, text), value)

    def test_values(self) -> None:
        self.both_ways(City, '{"name": "A", "size": 3, "color": "red", "near": [{"name": "B", "size": 1}]}',
                       City("A", 3, Color.RED, [City("B", 1)]))
        self.both_ways(Point, '{"at": [1, 2.5], "kind": "b"}', Point((1.0, 2.5), "b"))
        self.both_ways(List[Color], '["blue"]', [Color.BLUE])
        self.both_ways(Dict[str, City], '{"x": {"name": "A", "size": 0}}', {"x": City("A", 0)})
        self.both_ways(Union[int, List[City], None], '[{"name": "A", "size": 0}]', [City("A", 0)])
        self.both_ways(Union[City, Point], '{"at": [0, 1]}', Point((0.0, 1.0)))
        self.both_ways(Optional[int], "null", None)
        self.both_ways({"type": "integer"}, "7", 7)
        self.both_ways('{"type": "integer"}', "7", 7)
        self.both_ways(Tuple[int, ...], "[1, 2]", (1, 2))

    def test_schemas(self) -> None:
        city = json.loads(schema_of(City))
        self.assertEqual(city["$ref"], "#/$defs/City")
        self.assertEqual(city["$defs"]["City"]["required"], ["name", "size"])
        self.assertEqual(json.loads(schema_of(Tuple[int, str]))["maxItems"], 2)
        self.assertEqual(json.loads(schema_of(bool)), {"type": "boolean"})
        for wrong in (object, Dict[int, str], {1, 2}):
            with self.assertRaises(TypeError):
                schema_of(wrong)

    def test_tools(self) -> None:
        def weather(city: str, days: int = 1, color: Optional[Color] = None) -> str:
            """Tells the weather."""
            return "%s %d %s" % (city, days, color)

        tool = tool_of(weather)
        self.assertEqual(tool["function"]["name"], "weather")
        self.assertEqual(tool["function"]["description"], "Tells the weather.")
        self.assertEqual(tool["function"]["parameters"]["required"], ["city"])
        self.assertEqual(weather(**arguments_of(weather, {"city": "Rome", "color": "red"})), "Rome 1 Color.RED")
        for wrong in (lambda x: x, lambda *x: x):
            with self.assertRaises(TypeError):
                tool_of(wrong)


if __name__ == "__main__":
    unittest.main()
