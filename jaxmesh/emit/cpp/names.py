"""Legal names for the functions of a C++ file, derived from arbitrary names."""

from __future__ import annotations

import re

from jaxmesh.emit.names import comment, identifier

_KEYWORDS = frozenset({
    "alignas", "alignof", "and", "and_eq", "asm", "auto", "bitand", "bitor", "bool", "break", "case", "catch", "char",
    "char8_t", "char16_t", "char32_t", "class", "compl", "concept", "const", "consteval", "constexpr", "constinit",
    "const_cast", "continue", "co_await", "co_return", "co_yield", "decltype", "default", "delete", "do", "double",
    "dynamic_cast", "else", "enum", "explicit", "export", "extern", "false", "float", "for", "friend", "goto", "if",
    "inline", "int", "long", "mutable", "namespace", "new", "noexcept", "not", "not_eq", "nullptr", "operator", "or",
    "or_eq", "private", "protected", "public", "register", "reinterpret_cast", "requires", "return", "short",
    "signed", "sizeof", "static", "static_assert", "static_cast", "struct", "switch", "template", "this",
    "thread_local", "throw", "true", "try", "typedef", "typeid", "typename", "union", "unsigned", "using", "virtual",
    "void", "volatile", "wchar_t", "while", "xor", "xor_eq", "final", "override", "import", "module",
})  # fmt: skip

_HEADERS = frozenset({
    "std", "ttnn", "ttsl", "tt", "util_create_vec", "assert", "errno", "stdin", "stdout", "stderr", "linux", "unix",
    "i386", "offsetof", "environ", "daylight", "timezone", "tzname", "signgam", "stat", "timespec", "timeval",
    "timex", "tm", "itimerspec", "lconv", "sched_param", "random_data", "drand48_data",
    "math_errhandling", "setjmp", "alloca", "fd_mask", "fd_set", "getdate_err", "issubnormal", "optarg", "opterr",
    "optind", "optopt", "program_invocation_name", "program_invocation_short_name", "pthread_cleanup_pop",
    "pthread_cleanup_pop_restore_np", "pthread_cleanup_push", "pthread_cleanup_push_defer_np", "strdupa", "strndupa",
    "u_char", "u_int", "u_long", "u_short", "uint", "ulong", "ushort", "va_list",
})  # fmt: skip
"""Globals and macros of the standard headers with names that a function could have."""

_RISKY = re.compile(r".*_t|(SYS|[A-Z])_.*")
"""Name patterns that are too common in the system's headers to list: types, and macros such as `SYS_read` and
`M_PIf`."""
TAKEN = _KEYWORDS | _HEADERS


def function_name(text: str) -> str:
    """Returns a name for a function of the file; `main` is taken by the program, so it becomes `_main`.

    Reserved names (leading or double underscores) and possible macros (`EOF`) or types (`x_t`) are changed.

    >>> function_name("main"), function_name("__f"), function_name("EOF"), function_name("size_t")
    ('_main', 'f', 'eof', 'size_t_0')
    """
    name = identifier(text)
    if name == "main":
        return "_main"
    name = name.lower() if name.isupper() else name
    return identifier(name, TAKEN | {name} if _RISKY.fullmatch(name) else TAKEN)


def remark(text: str) -> str:
    """Returns a comment for the end of a line; empty for an empty text."""
    escaped = comment(text).replace("??", "? ?")
    return f"  // {escaped}" if escaped else ""
