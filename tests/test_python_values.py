"""What an expression gives in the sandbox is what it gives in ordinary Python: a value that differs in silence is the worst of errors."""

# ruff: noqa: E501  # expressions, one a line

import json
import random
import textwrap
from typing import Any

import pytest
from python_guests import PythonGuest, result_of

EVALUATE = """
def run(input):
    found = []
    for source in input:
        names = {}
        try:
            exec(source, names)
            found.append(["value", names["r"]])
        except Exception as problem:
            kind = type(problem).__name__
            found.append(["error", {"UnicodeDecodeError": "UnicodeError", "UnicodeEncodeError": "UnicodeError"}.get(kind, kind)])
    return found
"""


def in_the_sandbox(sources: list[str]) -> Any:
    with PythonGuest(EVALUATE) as guest:
        return guest.init(sources)["result"]


def in_ordinary_python(sources: list[str]) -> Any:
    names: dict[str, Any] = {}
    exec(EVALUATE, names)
    return json.loads(json.dumps(names["run"](sources)))


VALUES = {
    "rounding": [
        "[round(x / 1000, 2) for x in range(-100, 1500, 5)]",
        "[round(x / 20, 1) for x in range(100)]",
        "[round(x * 5.0, -1) for x in range(-9, 9)]",
        "[round(1e22, 2), round(1.5e300, 2), round(123.456, -2), round(-1250.0, -2), round(0.5, 0), round(1e-320, 3), round(2.5, None)]",
        "round(float('inf'), 2)  == float('inf')",
    ],
    "formats of numbers": [
        "['%.1f' % (x / 20) for x in range(100)]",
        "['{:.2f}'.format(x / 1000) for x in range(0, 3000, 5)]",
        "['%.0f' % 0.5, '%.0f' % 2.5, '%.2e' % 12345, '%g' % 1e-5, '%.17g' % (1 / 7), '%.20f' % 0.1, '%f' % 1e25]",
        "['{:,}'.format(1234567.891), '{:,.2f}'.format(-1234567.891), '{:,.0f}'.format(1234.5), '{:,}'.format(999.0), '{:,}'.format(10**9)]",
        "['{:.3}'.format(x) for x in (1.0, 100.0, 12.5, 1234567.0, 0.00001, 0.1 + 0.2, 123.0)]",
        "['{:10}|'.format(1e20), '{:<10}|'.format(1.5), '{:+}'.format(1.5), '{:010.2f}'.format(-1.5), '{: .1%}'.format(0.12345)]",
        "['%f' % float('nan'), '{:+f}'.format(float('nan')), '%F' % float('-inf'), '{:g}'.format(float('inf'))]",
        "len('%.500f' % 1e308)",
    ],
    "numbers as text": [
        "[str(x) for x in (5e-324, 2.5e-320, 1e-310, 2.2250738585072014e-308, 0.1 + 0.2, 1e16, 1e22, 123456789.125)]",
        "[json.dumps(2.0 ** x) for x in range(-1080, 1020)]",
    ],
    "integers": [
        "2.0 ** 1024",
        "2.0 ** -2000",
        "(-2.0) ** 3",
        "(-1).to_bytes(2, 'big')",
        "list((300).to_bytes(4, 'little'))",
        "(isinstance(True, int), isinstance(True, (str, int)), issubclass(bool, int), isinstance(1, bool), isinstance(True, str))",
        "(range(3) == range(3), range(0) == range(5, 5), range(3) == range(4), range(0, 3, 2) == range(0, 4, 2))",
    ],
    "text that is not ASCII": [
        "['ÀÉ'.lower(), 'àéß'.upper(), 'ЖЯ'.lower(), 'жя'.upper(), 'Ωmega'.lower(), 'Straße'.lower()]",
        "['é'.isalpha(), '日本'.isalpha(), 'é1'.isalpha(), 'É'.isupper(), 'ÉA1'.isupper(), 'éa'.islower(), '日'.isupper(), '\\u3000'.isspace()]",
        "['a\\u00a0b'.split(), 'a\\u3000b\\u2003 c'.split(), '\\u2028a b\\u00a0c d'.split(None, 1), '\\u00a0é\\u3000'.strip(), 'é \\x1c'.split()]",
        "['日a日'.strip('日'), '本a日'.strip('日'), 'éaé'.lstrip('é'), 'éaé'.rstrip('ée'), 'é'.strip('é')]",
        "['{:>5}|'.format('日本'), '{:^5}|'.format('é'), '%5s|' % '日', '%-5s|' % 'é', '%.2s|' % '日本語', '{:.2}|'.format('日本語')]",
        "['é'.center(4), 'ab'.center(5), 'ab'.center(-1), '日本'.center(7)]",
        "b'\\xc3\\x81 \\xa0'.lower().strip() == b'\\xc3\\x81 \\xa0'",
    ],
    "encodings": [
        "[list('é'.encode(name)) for name in ('utf-8', 'UTF8', 'utf_8', 'latin-1', 'latin1', 'iso-8859-1')]",
        "[b'a\\xe9'.decode('latin-1'), str(b'\\xc3\\xa9', 'utf-8'), list('日a'.encode('ascii', 'ignore')), list('日a'.encode('ascii', 'replace'))]",
        "b'\\xff'.decode()",
        "b'\\xe9'.decode('ascii')",
        "'é'.encode('ascii')",
        "'日'.encode('latin-1')",
        "'a'.encode('no-such-encoding')",
        "[b'a\\xffb\\xe6\\x97'.decode('utf-8', way) for way in ('ignore', 'replace')]",
        "b'\\xf0\\x9f\\x98a\\xc0\\x80\\xed\\xa0\\x80\\xe6\\x97\\xe6\\x97\\xa5'.decode('utf-8', 'replace')",
    ],
    "JSON": [
        "json.dumps(chr(8) + chr(12) + chr(127) + chr(31) + 'é')",
        "json.dumps(chr(8) + chr(12) + chr(127) + chr(31) + 'é', ensure_ascii=False)",
        "json.dumps({True: 1, None: 2, 1.5: 3, 4: 5})",
        "json.dumps({True: 1, None: 2, 1.5: [3]}, indent=2)",
        "[json.loads(text) for text in ('-0', '1e5', '1.5E-3', '0.0', ' [1 , 2] ')]",
        *(
            f"json.loads({text!r})"
            for text in ("01", "-01", ".5", "5.", "+5", "1e", "1e+", "-", "1-2", '"a\tb"', '"\x01"', "", "[1,]")
        ),
    ],
    "collections": [
        "dict(Counter('aab')), dict(defaultdict(int, {'a': 1}, b=2)), sorted((Counter('ab') + Counter('bc')).items())",
        "sorted((Counter('aab') - Counter('ab')).items()), Counter(a=2)['a'], Counter('ab')['z']",
        "namedtuple('P', 'x, y')(1, 2).y, list(deque([1, 2, 3], maxlen=2)), len(deque()), list(deque('abc'))",
    ],
    "regular expressions": [
        r"[re.findall(p, 'in 2024, 99 and 1999-12') for p in (r'\d{4}', r'\d{2,3}', r'\d{3,}', r'(?:\d\d){2}', r'[0-9]{1,2}?', r'\d{,2}-')]",
        r"[bool(re.match(p, t)) for p, t in (('a{2}', 'aa'), ('a{2}', 'a{2}'), ('a{', 'a{'), ('a{x}', 'a{x}'), ('a{,}', 'a{,}'))]",
        r"re.findall(r'\t|\n|\.', 'a\tb\nc.'), re.split(r'[,;\t]\s*', 'a, b;c\td'), re.findall('[]a]+|[^]]', 'a]b')",
        r"re.findall('é+', 'aééb'), re.findall('日{2}', '日日日'), re.sub('é|ü', '_', 'éaü'), [m.span() for m in re.finditer('b', 'éb日b')]",
        r"[m and m.group() for m in (re.fullmatch('a|ab', 'ab'), re.fullmatch('a*?', 'aaa'), re.fullmatch(r'\d+', '12a'), re.search('b', 'ab'))]",
        r"re.match('(a)(b)?', 'a').groups('x'), re.match('(a)(b)?', 'ab')[2], re.search('(a)(y)', 'xay').group(1, 2), re.search('ü', 'éü').span()",
        r"re.sub(r'(\w+) (\w+)', r'\2 \1', 'hello world'), re.sub('[a-c]', lambda m: m.group().upper(), 'abcd'), re.sub('a', 'b', 'aaa', 2)",
        r"re.escape('a.b*c-d e_é') == 'a\\.b\\*c\\-d\\ e_é', re.findall(re.escape('a{2}'), 'a{2}')",
    ],
    "hashes": [
        "hashlib.sha256(b'a').hexdigest(), hashlib.new('sha256', b'').hexdigest(), hashlib.sha256().digest_size",
        "hashlib.sha256('a')",
    ],
}
IMPORTS = "import json, hashlib, re\nfrom collections import Counter, defaultdict, deque, namedtuple\n"


@pytest.mark.parametrize("what", VALUES)
def test_an_expression_has_the_value_that_it_has_in_ordinary_python(what: str) -> None:
    sources = [f"{IMPORTS}r = {expression}" for expression in VALUES[what]]
    for expression, ours, theirs in zip(VALUES[what], in_the_sandbox(sources), in_ordinary_python(sources), strict=True):
        assert ours == theirs, expression


PROGRAMS = {
    "a dict that a loop over it adds to": "d = {'a': 1}\nfor key in d:\n    d[key + 'x'] = 1",
    "a dict that a loop over its items takes from": "d = {'a': 1, 'b': 2}\nfor key, _ in d.items():\n    del d[key]",
    "a dict that a loop over it only changes": "d = {'a': 1, 'b': 2}\nfor key in d:\n    d[key] = 5\nr = d",
    "a deque as a queue": """
from collections import deque
queue, r = deque(), []
for i in range(1000):
    queue.append(i)
    if i % 3 == 0:
        queue.appendleft(-i)
    if i % 2 == 0:
        r.append((queue.popleft(), queue[0] if queue else None, queue[-1] if queue else None, len(queue)))
queue.rotate(3)
r += [list(queue), 5 in queue, queue.pop(), bool(deque())]
queue.clear()
queue.pop()
""",
    "a hash that goes on": """
import hashlib
one = hashlib.sha256(b"a")
two = one.copy()
one.update(b"b")
r = [one.hexdigest(), two.hexdigest(), one.digest().hex()]
""",
    "an exception by the name that ordinary Python gives it": """
r = []
try:
    b"\\xff".decode()
except UnicodeDecodeError:
    r.append("decode")
try:
    import no_such_module
except ModuleNotFoundError:
    r.append("import")
""",
}


@pytest.mark.parametrize("what", PROGRAMS)
def test_a_program_does_what_it_does_in_ordinary_python(what: str) -> None:
    assert in_the_sandbox([PROGRAMS[what]]) == in_ordinary_python([PROGRAMS[what]])


UNKNOWN_PATTERNS = {
    r"\bword": r"has \b,",
    r"(a)\1": r"has \1,",
    r"\Aa": r"has \A,",
    r"\x41": r"has \x,",
    "(?i)a": "has (?i,",
    "(?P<n>a)": "has (?P,",
    "a(?=b)": "has (?=,",
    "[é]": "has a character between [ and ] that is not ASCII,",
    "(a){2}": "has {m,n} behind a group that captures; write (?:…),",
    "a{101}": "has more than 100 times the same,",
    "a)": "has a ) without its (",
    "[a": "has a [ without its ]",
    "(a": "is wrong, or has what",
    "a**": "repeats a repetition",
    "a{1}{2}": "repeats a repetition",
    "a*": "matches where there is nothing",
}


def test_a_pattern_that_the_sandbox_does_not_know_is_an_error_and_matches_nothing_else() -> None:
    found = result_of(f"""
import re
def run(input):
    told = []
    for pattern in {list(UNKNOWN_PATTERNS)!r}:
        try:
            told.append(re.findall(pattern, "a word"))
        except ValueError as problem:
            told.append(str(problem))
    return told
""")
    for pattern, told, what in zip(UNKNOWN_PATTERNS, found, UNKNOWN_PATTERNS.values(), strict=True):
        assert isinstance(told, str), pattern
        assert what in told


def test_random_numbers_are_rounded_and_written_as_in_ordinary_python() -> None:
    dice = random.Random(11)
    sources = []
    for _ in range(400):
        number = dice.choice([dice.random(), dice.uniform(-1e6, 1e6), dice.random() * 10.0 ** dice.randrange(-320, 300)])
        form = dice.choice(["f", "e", "g", ""]) if abs(number) < 1e30 else dice.choice(["e", "g", ""])
        precision, group = dice.randrange(0, 18), dice.choice(["", ","]) if form != "e" else ""
        sources.append(
            f"r = ['{{:{group}.{precision}{form}}}'.format({number!r}), round({number!r}, {dice.randrange(-3, 18)}), '%r' % {number!r}]"
        )
    assert in_the_sandbox(sources) == in_ordinary_python(sources)


NESTED = {
    "the repr of a list": "x = []\nfor _ in range(100_000): x = [x]\nrepr(x)",
    "the repr of a list in itself": "x = []\nx.append(x)\nrepr(x)",
    "lists that are compared": "x, y = [], []\nfor _ in range(100_000): x, y = [x], [y]\nx == y",
    "lists that are ordered": "x, y = [], []\nfor _ in range(100_000): x, y = [x], [y]\nx < y",
    "dicts that are compared": "x, y = {}, {}\nfor _ in range(100_000): x, y = {1: x}, {1: y}\nx == y",
    "the hash of a tuple": "x = ()\nfor _ in range(100_000): x = (x,)\nhash(x)",
    "source": "exec('x = ' + '[' * 5_000 + ']' * 5_000)",
}


@pytest.mark.parametrize("what", NESTED)
def test_nesting_that_is_too_deep_is_an_error_that_can_be_caught(what: str) -> None:
    source = "try:\n" + textwrap.indent(NESTED[what], "    ") + "\nexcept RecursionError:\n    r = 'too deep'"
    assert in_the_sandbox([source, "r = [[[1]]] == [[[1]]]"]) == [["value", "too deep"], ["value", True]]
