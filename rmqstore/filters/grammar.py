"""The grammar of SQL92 filters, parsed by lark (RocketMQ ``SelectorParser.jj``).

The parser is of the LALR kind, so it does not recurse, whatever the input. The actions of :class:`~rmqstore.filters.building.Builder`
run while it parses; no tree of lark's own is made.
"""

from __future__ import annotations

import difflib
import functools
import re
from collections.abc import Collection

from lark import Lark, Token, UnexpectedCharacters, UnexpectedToken

from rmqstore.filters.building import Builder
from rmqstore.filters.conditions import Condition
from rmqstore.filters.filter import Fault, quoted

_GRAMMAR = r"""
start: condition

?condition: conjunction
    | conjunction (_OR conjunction)+                             -> any_of
?conjunction: negation
    | negation (_AND negation)+                                  -> all_of
?negation: equality
    | NOT negation                                               -> negated
?equality: comparison
    | equality EQUALITY comparison                               -> equal
    | equality _IS [NOT] NULL                                    -> is_null
?comparison: operand
    | comparison ORDER operand                                   -> ordered
    | comparison [NOT] _BETWEEN operand _AND operand             -> between
    | comparison [NOT] _IN OPEN STRING (_COMMA STRING)* _CLOSE   -> within
    | comparison [NOT] (CONTAINS | STARTSWITH | ENDSWITH) STRING -> search
    | comparison [NOT] _LIKE STRING [_ESCAPE STRING]             -> like
?operand: NAME                                                   -> name
    | STRING                                                     -> string
    | INTEGER                                                    -> integer
    | DECIMAL                                                    -> decimal
    | (TRUE | FALSE | NULL)                                      -> truth
    | SIGN operand                                               -> signed
    | OPEN condition _CLOSE                                      -> enclosed

%declare NOT NULL TRUE FALSE CONTAINS STARTSWITH ENDSWITH _AND _OR _IS _IN _BETWEEN _LIKE _ESCAPE
NAME: /[A-Za-z_$][A-Za-z0-9_$]*/
STRING: /'[^']*(?:''[^']*)*'/
DECIMAL.1: /(?:[0-9]+\.[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?|[0-9]+[eE][+-]?[0-9]+/
INTEGER: /0|[1-9][0-9]*[lL]?/
EQUALITY: /=|<>/
ORDER: /<(?!>)=?|>=?/
SIGN: /[+-]/
OPEN: "("
_CLOSE: ")"
_COMMA: ","
BLANK: /[ \t\n\r\f]+/
LINE_COMMENT.2: /--[^\n\r]*/
BLOCK_COMMENT: /\/\*.*?\*\//s
%ignore BLANK
%ignore LINE_COMMENT
%ignore BLOCK_COMMENT
"""

# LIKE and ESCAPE are words of SQL92 and of JMS; all others are RocketMQ's.
_TERMINALS = {word.strip("_"): word for word in re.search(r"%declare (.*)", _GRAMMAR)[1].split()}  # type: ignore[index]
KEYWORDS = frozenset(_TERMINALS)
"""Words that name no property, in capitals; an expression may write them in any case."""

_READABLE = {
    "NAME": "a property",
    "STRING": "a string in single quotes",
    "INTEGER": "a number",
    "DECIMAL": "a number",
    "SIGN": "a number",
    "EQUALITY": "=, <>",
    "ORDER": "<, <=, >, >=",
    "OPEN": "'('",
    **{terminal: word for word, terminal in _TERMINALS.items()},
    "_COMMA": "','",
    "_CLOSE": "')'",
    "$END": "the end",
}

_OTHER_LANGUAGES = {"==": "=", "!=": "<>", "=<": "<=", "=>": ">=", "&&": "AND", "||": "OR"}
_NO_OPERATOR = re.compile(r"[^'\"<>=()|]+")


def parse(expression: str) -> tuple[Condition, frozenset[str], int]:
    """Return what an SQL92 expression says, the properties that it names, and how long the patterns of LIKE in it are together.

    Raises:
        Fault: the expression breaks the grammar, or puts together what does not belong together.
    """
    try:
        found: tuple[Condition, frozenset[str], int] = _parser().parse(expression)  # type: ignore[assignment]  # what Builder.start gives
    except UnexpectedToken as error:
        raise _unexpected_token(expression, error) from None
    except UnexpectedCharacters as error:
        raise _unexpected_character(expression, error) from None
    return found


@functools.cache
def _parser() -> Lark:
    def keyword(token: Token) -> Token:
        terminal = _TERMINALS.get(token.upper())
        return token if terminal is None else Token.new_borrow_pos(terminal, token.value, token)

    # The basic lexer takes the same tokens everywhere, so a keyword is never taken for a property.
    parser = Lark(_GRAMMAR, parser="lalr", lexer="basic", lexer_callbacks={"NAME": keyword}, transformer=Builder())
    # The lexer finishes itself when it is first used, which two threads must not do at once; here only one has it.
    parser.parse("TRUE")
    return parser


# ---------------------------------------------------------------- what is told when it does not parse


def _unexpected_token(expression: str, error: UnexpectedToken) -> Fault:
    accepted: Collection[str] = error.accepts or error.expected
    at_end = error.token.type == "$END"
    position = len(expression) if at_end else error.token.start_pos or 0
    words = list(dict.fromkeys(word for terminal, word in _READABLE.items() if terminal in accepted))
    expected = f"{', '.join(words[:-1])} or {words[-1]}" if len(words) > 1 else "".join(words)
    found = "the end" if at_end else quoted(error.token)
    return Fault(position, f"expected {expected}; found {found}", _fix_of_token(expression, position, error.token, accepted))


def _fix_of_token(expression: str, position: int, token: Token, accepted: Collection[str]) -> str:
    other = _other_language(expression, position)
    if other:
        return other
    if token.type == "$END":
        return "close the parenthesis" if "_CLOSE" in accepted else ""
    if token.type == "SIGN":
        return "filters do not calculate"
    if token.type in ("INTEGER", "DECIMAL") and set(accepted) == {"STRING"}:
        return f"write '{quoted(token)}'"
    if token.type in _TERMINALS.values() and "NAME" in accepted:
        return f"{token.upper()} is a keyword and cannot name a property"
    if token.type == "NAME":
        close = difflib.get_close_matches(token.upper(), [word for word, terminal in _TERMINALS.items() if terminal in accepted], 1, 0.7)
        if close:
            return f"did you mean {close[0]}?"
        if _NO_OPERATOR.fullmatch(expression):
            return "tags are joined by ||"
    return ""


def _unexpected_character(expression: str, error: UnexpectedCharacters) -> Fault:
    position: int = error.pos_in_stream  # type: ignore[assignment]  # the base class starts with None
    char = expression[position]
    if char == "'":
        return Fault(position, "expected a closing quote; found the end", "close the string, and write '' for a quote inside it")
    return Fault(position, f"expected a word, a value or an operator; found {quoted(char)}", _fix_of_character(expression, position))


def _fix_of_character(expression: str, position: int) -> str:
    other = _other_language(expression, position)
    if other:
        return other
    match expression[position]:
        case '"' | "`" | "‘" | "’" | "“" | "”":
            return "strings stand in single quotes, property names in none"
        case "*" | "/" | "%":
            return "filters do not calculate"
        case "|":
            return "write OR between conditions, or || between tags"
        case _:
            return ""


def _other_language(expression: str, position: int) -> str:
    """Return the fix for an operator that other languages write differently."""
    for start in (position, position - 1):
        right = _OTHER_LANGUAGES.get(expression[start : start + 2]) if start >= 0 else None
        if right:
            return f"write {right} instead of {expression[start : start + 2]}"
    return ""
