"""Itanium-mangled kernel names in C++ spelling, as far as template arguments of GEMM kernels go.

Kineto leaves a name mangled where it is longer than 1024 characters (libkineto/src/Demangle.cpp), which
the CUTLASS 3 kernels of PyTorch's grouped and row-wise scaled products are. Only the name is spelt out,
not the function's parameters; whatever the rules below do not know (expressions, decltype, lambdas)
gives None, for a tile read at the wrong place would be worse than none.

Grammar: https://itanium-cxx-abi.github.io/cxx-abi/abi.html#mangling. Checked against c++filt.
"""

from __future__ import annotations

from functools import lru_cache

_BUILTIN = {
    "v": "void", "w": "wchar_t", "b": "bool", "c": "char", "a": "signed char", "h": "unsigned char",
    "s": "short", "t": "unsigned short", "i": "int", "j": "unsigned int", "l": "long", "m": "unsigned long",
    "x": "long long", "y": "unsigned long long", "n": "__int128", "o": "unsigned __int128", "f": "float",
    "d": "double", "e": "long double",
}  # fmt: skip
_BUILTIN_D = {"n": "decltype(nullptr)", "h": "_Float16", "i": "char32_t", "s": "char16_t", "u": "char8_t"}
_STANDARD = {"a": "std::allocator", "b": "std::basic_string", "s": "std::string", "d": "std::iostream"}
_SUFFIX = {"int": "", "unsigned int": "u", "long": "l", "unsigned long": "ul", "long long": "ll",
           "unsigned long long": "ull"}  # fmt: skip
_DIGITS = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ"
#: Real names nest some 30 deep.
_DEEPEST = 200


class _UnknownError(Exception):
    """The name uses a part of the grammar that is not read here, or ends too early."""


@lru_cache(maxsize=1024)
def demangled(name: str) -> str | None:
    """The function's qualified name with its template arguments, or None where it is not understood.

    >>> demangled("_ZN7cutlass13device_kernelIN4cute5tupleIJNS1_1CILi128EEES4_EEEEEvNT_6ParamsE")
    'cutlass::device_kernel<cute::tuple<cute::C<128>, cute::C<128> > >'
    >>> demangled("ampere_sgemm_128x64_nn") is None
    True
    """
    if not name.startswith("_Z"):
        return None
    try:
        return _Demangler(name).encoding()
    except _UnknownError:
        return None


class _Demangler:
    """Recursive descent over one name; ``_seen`` are the substitutions S_, S0_, S1_, ..."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 2
        self._depth = 0
        self._seen: list[str] = []

    def encoding(self) -> str:
        name = self._nested() if self._next("N") else self._unscoped()
        # A function template's return type and parameters follow; a name cut off has nothing more.
        if self._at >= len(self._text):
            raise _UnknownError
        return name

    def _peek(self) -> str:
        if self._at >= len(self._text):
            raise _UnknownError
        return self._text[self._at]

    def _next(self, expected: str) -> bool:
        if self._text.startswith(expected, self._at):
            self._at += len(expected)
            return True
        return False

    def _number(self) -> int:
        start = self._at
        while self._at < len(self._text) and self._text[self._at] in "0123456789":
            self._at += 1
        if start == self._at or self._at - start > 6:
            raise _UnknownError
        return int(self._text[start : self._at])

    def _source_name(self) -> str:
        length = self._number()
        end = self._at + length
        if end > len(self._text) or length == 0:
            raise _UnknownError
        name = self._text[self._at : end]
        self._at = end
        return "(anonymous namespace)" if name.startswith("_GLOBAL__N") else name

    def _remember(self, name: str) -> str:
        self._seen.append(name)
        return name

    def _unscoped(self) -> str:
        name = f"std::{self._source_name()}" if self._next("St") else self._source_name()
        if self._peek() == "I":
            self._remember(name)
            name += self._arguments()
        return name

    def _nested(self) -> str:
        """After N: prefixes up to E; each prefix can be substituted later, the whole only as a type."""
        while self._peek() in "rVK":
            self._at += 1
        name = ""
        while not self._next("E"):
            if self._peek() == "I":
                if not name:
                    raise _UnknownError
                name = self._remember(name + self._arguments())
            elif not name and self._next("St"):
                name = "std"
            elif not name and self._peek() == "S":
                name = self._substitution()
            elif not name and self._peek() == "T":
                name = self._template_parameter()
            else:
                part = self._source_name()
                name = self._remember(f"{name}::{part}" if name else part)
        if not name:
            raise _UnknownError
        return name

    def _substitution(self) -> str:
        self._at += 1  # the S
        letter = self._peek()
        if letter in _STANDARD:
            self._at += 1
            return _STANDARD[letter]
        index = 0
        if not self._next("_"):
            value = 0
            while not self._next("_"):
                digit = _DIGITS.find(self._peek())
                if digit < 0 or value > 10**6:
                    raise _UnknownError
                value = value * 36 + digit
                self._at += 1
            index = value + 1
        if index >= len(self._seen):
            raise _UnknownError
        return self._seen[index]

    def _template_parameter(self) -> str:
        """T_ and T0_: what they stand for is not needed by any reader, so they stay as written."""
        start = self._at
        self._at += 1
        while not self._next("_"):
            if self._peek() not in _DIGITS:
                raise _UnknownError
            self._at += 1
        return self._remember(self._text[start : self._at])

    def _arguments(self) -> str:
        """I <arguments> E."""
        self._at += 1
        text = ", ".join(self._list())
        return f"<{text} >" if text.endswith(">") else f"<{text}>"

    def _list(self) -> list[str]:
        found: list[str] = []
        while not self._next("E"):
            if self._next("J"):
                found += self._list()
            elif self._next("L"):
                found.append(self._literal())
            else:
                found.append(self._type())
        return found

    def _literal(self) -> str:
        kind = self._type()
        sign = "-" if self._next("n") else ""
        value = f"{sign}{self._number()}"
        if not self._next("E"):
            raise _UnknownError
        if kind == "bool":
            return "true" if value == "1" else "false"
        return f"{value}{_SUFFIX[kind]}" if kind in _SUFFIX else f"({kind}){value}"

    def _type(self) -> str:
        self._depth += 1
        if self._depth > _DEEPEST:
            raise _UnknownError
        try:
            return self._one_type()
        finally:
            self._depth -= 1

    def _one_type(self) -> str:
        letter = self._peek()
        for code, after in (("P", "*"), ("R", "&"), ("O", "&&"), ("K", " const"), ("V", " volatile")):
            if self._next(code):
                return self._remember(self._type() + after)
        if letter in _BUILTIN:
            self._at += 1
            return _BUILTIN[letter]
        if self._next("D"):
            return self._builtin_d()
        if self._next("u"):
            return self._remember(self._source_name())
        if self._next("N"):
            return self._nested()
        if letter == "T":
            return self._template_parameter()
        if self._next("St"):
            name = self._remember(f"std::{self._source_name()}")
        elif letter == "S":
            name = self._substitution()
        else:
            name = self._remember(self._source_name())
        return self._remember(name + self._arguments()) if self._peek() == "I" else name

    def _builtin_d(self) -> str:
        if self._next("F16b"):
            return "std::bfloat16_t"
        if self._next("F16_"):
            return "_Float16"
        letter = self._peek()
        if letter not in _BUILTIN_D:
            raise _UnknownError
        self._at += 1
        return _BUILTIN_D[letter]
