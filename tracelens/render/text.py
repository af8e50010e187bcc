"""Strings that come from a trace are made safe before any renderer sees them; as Markdown, plain text."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Sequence

#: Cc: terminal escapes; Cf: right-to-left overrides and zero-width characters that make a name
#: read as another one; Cs: lone surrogates that no UTF-8 file can hold; Zl, Zp: line separators.
_UNSAFE = {"Cc", "Cf", "Cs", "Zl", "Zp"}
_ANSI = re.compile(
    r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]"  # CSI: colours, cursor
    r"|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)?"  # OSC: titles, links
    r"|\x1b[@-Z\\-_]"
)
_WRAPPER = re.compile(
    r"^(?:void\s+)?(?:cutlass|cutlass__\w+)::(?:device_kernel|Kernel2?)<(?:(?:\w+::)*enable_\w+<)*"
)


def clean(text: str, *, limit: int | None = None) -> str:
    r"""Drop escape sequences, turn other invisible characters into U+FFFD, and cut to ``limit``.

    >>> clean("\x1b[31mgemm\x1b[0m\u202egpj.exe")
    'gemm�gpj.exe'
    """
    if not text.isascii() or not text.isprintable():
        text = _ANSI.sub("", text)
        text = "".join(
            " " if c in "\n\t" else "\ufffd" if unicodedata.category(c) in _UNSAFE else c for c in text
        )
    if limit is not None and len(text) > limit:
        text = text[: limit - 1] + "…"
    return text


def clean_lines(text: str, *, limit: int, most: int) -> list[str]:
    r"""Clean each line of a text; no more than ``most`` lines that come to ``limit`` characters.

    >>> clean_lines("one\ntwo\x1b[31m\nthree", limit=100, most=2)
    ['one', 'two…']
    """
    lines = text.split("\n")
    kept = [clean(line, limit=limit) for line in lines[:most]]
    room = limit
    for at, line in enumerate(kept):
        if len(line) > room:
            return [*kept[:at], line[: max(room - 1, 0)] + "…"]
        room -= len(line)
    return [*kept[:-1], kept[-1] + "…"] if len(lines) > most else kept


def unbroken(text: str) -> str:
    """Keep "61.0 → 60.5 ms" and "p = 0.34" on one line each."""
    whole = re.sub(r"(?<=\S) (→|=|<) (?=\S)", "\u00a0\\1\u00a0", text)
    return re.sub(r"(?<=\d) (?=(?:ms|µs|s)\b)", "\u00a0", whole)


def short_kernel(name: str, limit: int = 44) -> str:
    """Name a kernel by the part that tells kernels apart, without wrapper and template arguments.

    >>> short_kernel("void cutlass::Kernel2<cutlass_80_tensorop_s16816gemm_bf16_256x128_32x3_tn_align8>(P)")
    'cutlass_80_tensorop…6_256x128_32x3_tn_align8'
    >>> short_kernel("void pytorch_flash::flash_fwd_kernel<Flash_fwd_kernel_traits<64, 128> >(Params)")
    'flash_fwd_kernel'
    >>> short_kernel("void cutlass::device_kernel<flash::enable_sm90<flash::FlashAttnBwdSm90<X> > >(P)")
    'FlashAttnBwdSm90'
    >>> short_kernel("void at::(anonymous namespace)::softmax<Half>(Half*, c10::Half const*)")
    'softmax'
    """
    name = clean(name, limit=2000).replace("(anonymous namespace)::", "")
    name = _WRAPPER.sub("", name)
    name = re.split(r"[<(>]", name.removeprefix("void "), maxsplit=1)[0] or name
    name = name.rsplit("::", 1)[-1]
    if len(name) <= limit:
        return name
    # The tail of a GEMM kernel's name carries tile, layout and alignment; the head carries the family.
    tail = limit * 6 // 11
    return f"{name[: limit - tail - 1]}…{name[-tail:]}"


_LIMIT = 300
#: Everything that Markdown or HTML reads as more than text, and what makes an address a link.
_SPECIAL = re.compile(r"([\\`*_{}\[\]<>()#+!|~&@$])")
_LINK = re.compile(r"(?i)(https?|ftp|www)([:.])")
#: At the beginning of a line a command to GitHub's runner, should the Markdown go to standard output.
_COMMAND = re.compile(r"^(\s*)::")


def escape(text: str) -> str:
    r"""Make a string plain text in Markdown.

    >>> escape("<b>|x|")
    '\\<b\\>\\|x\\|'
    """
    text = _SPECIAL.sub(r"\\\1", clean(text, limit=_LIMIT))
    return _COMMAND.sub(r"\1\\::", _LINK.sub(r"\1\\\2", text))


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Lines of a table; its cells are escaped, its heads are ours."""

    def line(cells: Iterable[str]) -> str:
        return "| " + " | ".join(cells) + " |"

    return [line(heads), line(["---"] * len(heads)), *(line(escape(cell) for cell in row) for row in rows)]


def fenced(lines: Iterable[str]) -> list[str]:
    """Lines of a diff in a code block that none of them can end."""
    body = [_COMMAND.sub(r"\1: :", clean(line, limit=_LIMIT)) for line in lines]
    longest = max((len(run) for line in body for run in re.findall("`+", line)), default=0)
    fence = "`" * max(3, longest + 1)
    return [f"{fence}diff", *body, fence]
