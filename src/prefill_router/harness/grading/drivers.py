"""The programs that run in the sandbox: an answer's code, and what surrounds it.

An answer's code can read and change everything in its process, these programs included. So they
decide nothing: they hand over a test's input and hand back what came out; whether that is right is
decided outside, where the expected outputs are.
"""

ANSWER = "answer.py"
"""The file beside the program that holds the answer's code."""

_MODULES = (
    "string re datetime collections heapq bisect copy math random statistics itertools functools "
    "operator io sys json typing"
)
_NAMES = f"""
import builtins, sys
sys.setrecursionlimit(50000)
if hasattr(sys, "set_int_max_str_digits"):
    sys.set_int_max_str_digits(0)
names = {{"__name__": NAME, "__builtins__": builtins, "__file__": "{ANSWER}"}}
for star in {_MODULES.split()!r}:
    module = __import__(star)
    public = getattr(module, "__all__", None) or [n for n in vars(module) if n[0] != "_"]
    names.update((n, getattr(module, n)) for n in public)
names.update((n, v) for n, v in vars(builtins).items() if n[0] != "_")
names.update((n, __import__(n)) for n in {_MODULES.split()!r})
with open("{ANSWER}", encoding="utf-8") as file:
    code = compile(file.read(), "{ANSWER}", "exec")
"""
"""The names that the benchmark gives every answer: many of its answers import nothing."""

STDIN = (
    _NAMES.replace("NAME", '"__main__"')
    + """
try:
    exec(code, names)
except SystemExit:
    pass
"""
)
"""Runs a whole program: a test's input is its standard input, and it prints the output.

Leaving early by `sys.exit`, with whatever status, is no error, as in the benchmark.
"""

_CALL = (
    _NAMES.replace("NAME", '"answer"')
    + """
import json, os

def plain(value):
    if hasattr(value, "item"):  # numpy's numbers
        return value.item()
    raise TypeError(f"a result of the type {type(value).__name__}")

said = os.dup(1)
os.dup2(2, 1)  # what the answer prints is not its result
lines = sys.stdin.buffer.read().decode().split("\\n")
arguments = [json.loads(line) for line in lines if line.strip()]
exec(code, names)
holder = names["Solution"]() if "Solution" in names else None
function = getattr(holder, FUNCTION, None) or names[FUNCTION]
result = function(*arguments)
with os.fdopen(said, "w", encoding="utf-8") as out:
    json.dump(result, out, default=plain)
"""
)


def call_program(function: str) -> str:
    """The program that calls a function with a test's arguments, one JSON value a line.

    The function is a method of a class `Solution` where the answer has one, as at LeetCode, or else
    one of the answer itself. Its result is printed as one JSON document; tuples become lists.
    """
    return _CALL.replace("FUNCTION", repr(function))
