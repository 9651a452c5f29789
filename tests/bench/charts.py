#!/usr/bin/env python3
"""Draws the charts of results/ and of the README out of the tables of results/*.md, as SVG; Python's standard library alone.

    python3 tests/bench/charts.py          # rewrites results/*.svg

A chart's figures are its page's table, so that the two cannot differ.  To add one: a function here, and its line in main().
"""
import os
import re

HERE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "results")
COLORS = ["#1f6f8b", "#e07a1f", "#5b8c3a", "#9b3d6b", "#6b6b6b", "#b8a11f", "#3f4f9b"]


def table(page, header):
    """The rows of the first table of `page` whose header line begins with `header`, as lists of cells."""
    lines = open(os.path.join(HERE, page), encoding="utf-8").read().split("\n")
    at = next(i for i, line in enumerate(lines) if line.startswith(header))
    rows = []
    for line in lines[at + 2 :]:
        if not line.startswith("|"):
            break
        rows.append([cell.strip() for cell in line.strip("|").split("|")])
    return rows


def number(cell):
    match = re.search(r"\d*\.?\d+", cell)
    return float(match[0]) if match and cell != "-" else None


def escape(text):
    return text.replace("&", "&amp;").replace("<", "&lt;")


class Svg:
    def __init__(self, width, height, title):
        self.parts = [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
            'font-family="sans-serif" font-size="13">',
            f'<rect width="{width}" height="{height}" fill="white"/>',
            f'<text x="16" y="24" font-size="15" font-weight="bold">{escape(title)}</text>',
        ]

    def text(self, x, y, text, anchor="start", color="#222"):
        self.parts.append(f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{color}">{escape(text)}</text>')

    def line(self, x1, y1, x2, y2, color="#ccc", width=1):
        self.parts.append(f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{color}" stroke-width="{width}"/>')

    def bar(self, x, y, width, height, color):
        self.parts.append(f'<rect x="{x:.1f}" y="{y:.1f}" width="{max(width, 1):.1f}" height="{height:.1f}" fill="{color}"/>')

    def path(self, points, color):
        text = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        self.parts.append(f'<polyline points="{text}" fill="none" stroke="{color}" stroke-width="2.5"/>')
        for x, y in points:
            self.parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3.5" fill="{color}"/>')

    def save(self, name):
        with open(os.path.join(HERE, name), "w", encoding="utf-8") as file:
            file.write("\n".join(self.parts + ["</svg>", ""]))


def kept():
    """Kept answers against budgets, seven policies of policies.md at 1,024 tokens."""
    budgets = [80, 50, 30, 20, 10]
    shown = ["auto", "loki", "quest", "cake", "adakv", "heterocache", "streaming"]
    rows = {row[0]: row for row in table("policies.md", "| policy | 80%")}
    svg = Svg(760, 380, "Right answers kept, by KV budget (demo model, 1,024 tokens)")
    left, right, top, bottom = 56, 600, 50, 330
    x = lambda i: left + (right - left) * i / (len(budgets) - 1)
    y = lambda v: bottom - (bottom - top) * v
    for v in (0, 0.25, 0.5, 0.75, 1):
        svg.line(left, y(v), right, y(v))
        svg.text(left - 8, y(v) + 4, f"{v:.2f}", "end")
    for i, budget in enumerate(budgets):
        svg.text(x(i), bottom + 22, f"{budget}%", "middle")
    svg.text((left + right) / 2, bottom + 42, "KV kept on the device, share of full KV's bytes", "middle")
    labels = []
    for n, policy in enumerate(shown):
        values = [number(cell.split("/")[0].strip()) for cell in rows[policy][1:6]]
        points = [(x(i), y(v)) for i, v in enumerate(values) if v is not None]
        svg.path(points, COLORS[n])
        labels.append((points[-1][1], policy, COLORS[n]))
    last = -99
    for at, policy, color in sorted(labels):
        last = max(at, last + 17)
        svg.text(right + 12, last + 4, policy, color=color)
    svg.save("kept.svg")


def decode():
    """Decode beside llama.cpp, AVX2, from cpu-avx2.md."""
    rows = table("cpu-avx2.md", "| decode | orrery")
    most = max(number(row[1]) for row in rows)
    svg = Svg(760, 60 + 46 * len(rows) + 40, "Decode, tokens a second: 1.1B model, two cores with AVX2")
    for i, row in enumerate(rows):
        at = 50 + 46 * i
        svg.text(70, at + 22, row[0], "end")
        for n, cell in enumerate((row[1], row[3])):
            value = number(cell)
            svg.bar(80, at + 17 * n, 560 * value / most, 15, COLORS[n])
            svg.text(86 + 560 * value / most, at + 12 + 17 * n, f"{value:.1f}")
    for n, name in enumerate(("Orrery", "llama.cpp")):
        svg.bar(80 + 120 * n, 58 + 46 * len(rows), 12, 12, COLORS[n])
        svg.text(98 + 120 * n, 69 + 46 * len(rows), name)
    svg.save("decode.svg")


if __name__ == "__main__":
    kept()
    decode()
