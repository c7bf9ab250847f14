"""From a source text to its tree: statements one by one, every mistake reported, none fatal.

The grammar is `grammar/shardlang.lark`, loaded by `grammar`; `lines` finds the statements, `build`
makes the nodes. A statement that can't be read gives one error and the rest is read all the same.
Nothing here recurses, so no text can exhaust the stack.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from difflib import get_close_matches
from functools import cache
from typing import cast, TYPE_CHECKING

from lark.exceptions import UnexpectedCharacters, UnexpectedInput, UnexpectedToken

from shardlang.diagnostics import Label, Reporter, ShardlangError
from shardlang.frontend.blocks import indent, nested
from shardlang.frontend.build import Builder
from shardlang.frontend.files import read_source
from shardlang.frontend.grammar import grammar_text, load_parser
from shardlang.frontend.heads import RELATIONS
from shardlang.frontend.lines import Chunk, MAX_BRACKETS, split
from shardlang.frontend.parse_errors import (
    DECLARATIONS,
    Expected,
    FOREIGN,
    LonelyName,
    MissingComma,
    MissingOperator,
    NothingToDo,
    shown,
    TooDeep,
    TooLong,
    TooManyMistakes,
    UnclosedBracket,
    UnknownCharacter,
    WrongArrow,
    WrongBracket,
)
from shardlang.frontend.pieces import FormError, reading_at
from shardlang.frontend.syntax import (
    Binary,
    BlockDecl,
    Call,
    Comparison,
    Definition,
    Expr,
    File,
    Item,
    Negate,
    Product,
)
from shardlang.source import Source, Span

if TYPE_CHECKING:
    from lark import Lark

__all__ = ["grammar_text", "parse", "read", "read_source"]

MAX_CHAIN = 200
"""How many operators and calls may stand on one another, so that walks over the tree may recurse."""

MAX_STATEMENT = 100_000
"""How many characters a statement may have."""

MAX_STATEMENTS = 100_000
"""How many statements a file may have."""

MAX_LIST = 2_000
"""Up to how many characters of a wrong `dims` line its sizes are read one by one."""

MAX_MISTAKES = 100
"""After how many mistakes reading stops."""


@cache
def _parser() -> Lark:
    return load_parser(Builder())


def parse(source: Source, *, whole: bool = True) -> File:
    """Read a whole text; raise `ShardlangError` with every mistake of form, or if it is empty.

    Where some lines can't be read, the mistakes of meaning in the others are reported as well,
    unless `whole` is off.
    """
    reporter = Reporter(source)
    broken: list[Span] = []
    tree = read(source, reporter, broken)
    if not tree.items and not reporter.errors:
        end = len(source.text.rstrip())
        reporter.report(Span(end, end), NothingToDo())
    if whole and broken and len(reporter.errors) < MAX_MISTAKES:
        from shardlang.frontend.resolve import other_mistakes  # noqa: PLC0415 (it parses --mesh)

        raise ShardlangError((*reporter.diagnostics, *other_mistakes(tree, source, broken)))
    reporter.raise_if_errors()
    return tree


def read(source: Source, reporter: Reporter, broken: list[Span] | None = None) -> File:
    """Read what can be read of a text, and report the rest; an empty text gives an empty tree.

    The places of the statements that can't be read are added to `broken`.
    """
    chunks, comments = split(source.text)
    items: list[Item] = []
    starts: list[int] = []
    if len(chunks) > MAX_STATEMENTS:
        at = chunks[MAX_STATEMENTS].start
        reporter.report(Span(at, at), TooLong("the program has", MAX_STATEMENTS, "statements"))
        return File((), comments)
    unread: list[Span] = []
    queue = _Queue(chunks)
    mistakes = 0
    for chunk in queue:
        item = _attempt(source.text, chunk)
        if isinstance(item, FormError):
            cut = _restart(source.text, chunk, item)
            if cut is not None:
                queue.push(cut[1])
                head = _attempt(source.text, cut[0])
                if not isinstance(head, FormError):
                    items.append(head)
                    starts.append(chunk.start)
                    continue
                item = head
            read_here = chunk if cut is None else cut[0]
            good, wrong = _one_by_one(source.text, read_here)
            items += good
            starts += [chunk.start] * len(good)
            for each in wrong or [_in_block(source.text, chunk.start, item, items, starts)]:
                reporter.report(each.span, each.mistake, each.labels)
                mistakes += 1
            unread.append(Span(read_here.start, read_here.end))
            if mistakes >= MAX_MISTAKES:
                end = Span(read_here.end, read_here.end)
                reporter.report(end, TooManyMistakes(MAX_MISTAKES))
                break
        else:
            items.append(item)
            starts.append(chunk.start)
    if broken is not None:
        broken += unread
    return File(nested(source, items, starts, unread, reporter), comments)


def _in_block(
    text: str, start: int, wrong: FormError, items: Sequence[Item], starts: Sequence[int]
) -> FormError:
    """Say of a name that stands alone whether it is meant as the result of a named block."""
    if not isinstance(wrong.mistake, LonelyName):
        return wrong
    own = indent(text, start)
    for item, place in zip(reversed(items), reversed(starts), strict=True):
        if len(indent(text, place)) < len(own):
            if isinstance(item, BlockDecl):
                mistake = replace(wrong.mistake, block=item.name.text)
                return FormError(wrong.span, mistake, wrong.labels)
            break
    return wrong


def _one_by_one(text: str, chunk: Chunk) -> tuple[list[Item], list[FormError]]:
    """Read each size of a `dims` line by itself, so that each mistake in one is reported.

    Both lists are empty where the line is none, or no size is wrong by itself.
    """
    head = _DIMS.match(text, chunk.start, chunk.end)
    if head is None or chunk.deep is not None or chunk.end - chunk.start > MAX_LIST:
        return [], []
    good: list[Item] = []
    wrong: list[FormError] = []
    for start, end in _listed(text, head.end(), chunk.end):
        if not _SIZE_OF_DIM.match(text, start, end):
            return [], []
        blank = " " * (start - head.end())
        alone = text[: head.end()] + blank + text[start:end]
        item = _attempt(alone, Chunk(chunk.start, end))
        if isinstance(item, FormError):
            wrong.append(item)
        else:
            good.append(item)
    return (good, wrong) if wrong else ([], [])


def _listed(text: str, start: int, end: int) -> Iterator[tuple[int, int]]:
    """Cut a range at the commas outside brackets."""
    depth = 0
    for match in _LIST_SIGN.finditer(text, start, end):
        char = match.group()
        if char == ",":
            if depth <= 0:
                yield start, match.start()
                start = match.end()
        else:
            depth += 1 if char in "([{" else -1
    yield start, end


class _Queue:
    """The chunks that are still to be read, in order; a part of one can be put back."""

    def __init__(self, chunks: list[Chunk]) -> None:
        self._chunks = iter(chunks)
        self._next: Chunk | None = None

    def push(self, chunk: Chunk) -> None:
        """Read this chunk next."""
        self._next = chunk

    def __iter__(self) -> Iterator[Chunk]:
        while True:
            chunk, self._next = self._next, None
            if chunk is None:
                chunk = next(self._chunks, None)
            if chunk is None:
                return
            yield chunk


def _statement(text: str, chunk: Chunk) -> Item:
    """Read one statement or raise `FormError`."""
    if chunk.deep is not None:
        span = Span(chunk.deep, chunk.deep + 1)
        raise FormError(span, TooDeep("brackets are nested", MAX_BRACKETS))
    if chunk.end - chunk.start > MAX_STATEMENT:
        span = Span(chunk.start, chunk.start)
        raise FormError(span, TooLong("the statement has", MAX_STATEMENT, "characters"))
    piece = text[chunk.start : chunk.end]
    reading_at(chunk.start)
    try:
        item = cast("Item", _parser().parse(piece))
    except UnexpectedInput as error:
        raise _explain(text, chunk, error) from None
    if len(piece) > MAX_CHAIN and isinstance(item, Definition):
        _check_depth(item.expr)
    return item


def _attempt(text: str, chunk: Chunk) -> Item | FormError:
    """Read one statement; give the mistake instead of raising it."""
    try:
        return _statement(text, chunk)
    except FormError as wrong:
        return _declaration(text, chunk, wrong)


def _declaration(text: str, chunk: Chunk, wrong: FormError) -> FormError:
    """Suggest the declaration that a mistyped first word is close to: `dim B=3`, `for i in L`."""
    match = _TWO_WORDS.match(text, chunk.start, chunk.end)
    if match is None or not isinstance(wrong.mistake, _TIPPED):
        return wrong
    known = DECLARATIONS.get(match[1]) or FOREIGN.get(match[1])
    if known is not None:
        tip = wrong.mistake.tip or known
        return FormError(wrong.span, replace(wrong.mistake, tip=tip), wrong.labels)
    close = get_close_matches(match[1].lower(), DECLARATIONS, 1, 0.75)
    if not close or wrong.mistake.tip is not None:
        return wrong
    tip = f"did you mean `{close[0]}`? {DECLARATIONS[close[0]]}"
    return FormError(wrong.span, replace(wrong.mistake, tip=tip), wrong.labels)


def _restart(text: str, chunk: Chunk, wrong: FormError) -> tuple[Chunk, Chunk] | None:
    """Cut a statement that an operator carried over its line end, if the rest is one by itself.

    `C = A ·` above `D[I] = E[I]` is one bad statement and one good one. A line that starts with an
    operator which can't go on the line before it is a statement by itself, too.
    """
    for number, joint in reversed(list(enumerate(chunk.joints))):
        if joint.start <= wrong.span.start:
            head = replace(chunk, end=joint.end, joints=chunk.joints[:number])
            rest = replace(chunk, start=joint.start, joints=chunk.joints[number + 1 :])
            alone = _defines(text, head) and _defines(text, rest)
            here = joint.start == wrong.span.start
            return (head, rest) if here or alone or _is_definition(text, rest) else None
    return None


def _defines(text: str, chunk: Chunk) -> bool:
    """Say whether a text has the sign of a definition."""
    return _DEFINES.search(text, chunk.start, chunk.end) is not None


def _is_definition(text: str, chunk: Chunk) -> bool:
    """Say whether a text is a definition or a declaration by itself."""
    item = _attempt(text, chunk)
    return not isinstance(item, FormError | Definition) or (
        isinstance(item, Definition) and item.target is not None
    )


def _check_depth(root: Expr) -> None:
    """Refuse a tree on which a recursive walk might run out of stack."""
    stack: list[tuple[Expr, int]] = [(root, 1)]
    while stack:
        expr, depth = stack.pop()
        if depth > MAX_CHAIN:
            place = Span(root.span.start, root.span.end)
            raise FormError(place, TooLong("the expression has", MAX_CHAIN, "operators in a row"))
        match expr:
            case (
                Product(left=left, right=right)
                | Binary(left=left, right=right)
                | Comparison(left=left, right=right)
            ):
                stack += [(left, depth + 1), (right, depth + 1)]
            case Negate(operand):
                stack.append((operand, depth + 1))
            case Call(arguments=arguments):
                stack += [(argument, depth + 1) for argument in arguments]
            case _:
                pass


# ---- What a failure of the parser means ----------------------------------------------------------

_BRACKET = re.compile(r"(?:#|//)[^\n]*|[(){}\[\]]")
_CLOSING = {"(": ")", "[": "]", "{": "}"}
_SIGNS = re.compile(r":=|=>|<-|\|->|--+>|~>|:->")
_WORD = re.compile(r"[^\W_][\w'′]*")
_DEFINES = re.compile(r"(?<![=<>!])=(?!=)|->|[→⟶]|\\(?:long)?(?:rightarrow|to)(?![a-zA-Z])")
_COMMAND = re.compile(r"\\[a-zA-Z]+")
_HEADER = re.compile(r"\w+\s*:")
_OPERANDS = frozenset({"NAME", "NUMBER", "LPAR"})
_DIMS = re.compile(r"dims(?=[ \t])")
_SIZE_OF_DIM = re.compile(r"\s*[^\W\d_][\w'′{}\\]*\s*=")
_LIST_SIGN = re.compile(r"[,(){}\[\]]")
_TWO_WORDS = re.compile(r"([^\W\d_]\w*)[ \t]+[^\W\d_]")
_TIPPED = (MissingOperator, Expected)
_ARROW = re.compile(r"->|[→⟶]|\\(?:long)?(?:rightarrow|to)(?![a-zA-Z])")
_PLAIN = {
    "COMMA": "`,`",
    "RSQB": "`]`",
    "RPAR": "`)`",
    "RBRACE": "`}`",
    "EQUALS": "`=`",
    "ARROW": "`->`",
    "COLON": "`:`",
    "LSQB": "`[`",
    "BAR": "`|`",
    "PATH": "the name of a hardware or a path",
}


def _explain(text: str, chunk: Chunk, error: UnexpectedInput) -> FormError:
    """Put a failure of the parser into the words of the notation."""
    at, end, accepts = _failure(text, chunk, error)
    found = text[at:end]
    place = Span(at, end)
    opened = _open_brackets(text, chunk.start, at)
    before = _word_before(text, chunk.start, at)
    sign = _sign_at(text, chunk, at)
    if sign is not None:
        return FormError(sign, WrongArrow(text[sign.start : sign.end]))
    if found[:1] and found[-1] in ")]}":
        return _wrong_closing(text, place, found[-1], opened, accepts)
    arrow = _arrow_at(text, chunk, at)
    if arrow is not None and accepts >= _OPERANDS and not (opened and opened[-1][1] != "("):
        written = shown(text[arrow.start : arrow.end])
        return FormError(arrow, Expected("a tensor", written, missing=True))
    if _is_unknown(error, found):
        return FormError(place, UnknownCharacter(found))
    first = _first_word(text, chunk)
    starts_operand = bool(_WORD.match(found)) or found[:1] in "[(\\|"
    if found and "COMMA" in accepts and starts_operand and before and found[0] not in "([|":
        if before[0].isdigit() and "STAR" in accepts and not text[at - 1].isspace():
            return FormError(place, MissingOperator(shown(before), shown(found), sizes=True))
        if opened or first in DECLARATIONS:
            whole = DECLARATIONS[first] if first in ("optimizer", "schedule") else None
            return FormError(place, MissingComma(shown(before), shown(found), whole))
    if opened and not accepts & _OPERANDS and not _only_more(accepts, opened[-1][1]):
        start, char = opened[-1]
        label = Label(Span(start, start + 1), "opened here")
        tip = _argument_tip(first, char, found)
        unclosed = UnclosedBracket(char, _CLOSING[char], shown(found) if found else None, tip)
        return FormError(place, unclosed, [label])
    if found and "PLUS" in accepts and starts_operand and first not in DECLARATIONS:
        return FormError(place, MissingOperator(shown(before or "what precedes"), shown(found)))
    what = _expected(text, at, accepts, opened)
    tip = DECLARATIONS.get(first) or _tip(text, chunk, found, at)
    return FormError(place, Expected(what, shown(found) if found else None, tip))


def _argument_tip(first: str, opening: str, found: str) -> str | None:
    """Say what may stand in the brackets of a call or of a block's head, where something else does."""
    if opening == "(" and first == "block" and found in (":", "=", "["):
        return f"the parameters of a block are names alone; {DECLARATIONS['block']}"
    if opening == "(" and found == "=":
        return "arguments stand in order, without the names of parameters"
    return None


def _tip(text: str, chunk: Chunk, found: str, at: int) -> str | None:
    """Suggest what may have been meant."""
    if found == "," and not _open_brackets(text, chunk.start, at):
        return "a line defines one value: write a line for each"
    if found.lstrip("\\") in RELATIONS:
        return "a comparison has two sides: `(A < B) ⊙ (B < C)` is 1 where both hold"
    if found == "^" or (found == "*" and text[at - 1] == "*"):
        return "a transpose is `^T`, a square is `square(A)`"
    if _HEADER.fullmatch(text, chunk.start, chunk.end):
        return "a section starts with `forward:` or `backward:`"
    return None


def _is_unknown(error: UnexpectedInput, found: str) -> bool:
    """Say whether what stands at a place is no word of the notation at all."""
    if isinstance(error, UnexpectedToken) and error.token.type != "PATH":
        return False
    return bool(found) and not _WORD.match(found)


def _failure(text: str, chunk: Chunk, error: UnexpectedInput) -> tuple[int, int, frozenset[str]]:
    """Give the place at which the parser stopped, and the names of the terminals that fit there."""
    if isinstance(error, UnexpectedToken):
        accepts = frozenset(error.accepts or error.expected)
        if error.token.type == "$END":
            return chunk.end, chunk.end, accepts
        at = chunk.start + (error.token.start_pos or 0)
        if error.token.type != "PATH":  # which is what any sign looks like to it
            return at, at + len(error.token), accepts
    else:
        assert isinstance(error, UnexpectedCharacters)
        at = chunk.start + (error.pos_in_stream or 0)
        accepts = frozenset(error.allowed or set[str]())
    match = _WORD.match(text, at, chunk.end) or _COMMAND.match(text, at, chunk.end)
    return at, at + 1 if match is None else match.end(), accepts


def _open_brackets(text: str, start: int, end: int) -> list[tuple[int, str]]:
    """List the brackets that are open at a place, outermost first."""
    stack: list[tuple[int, str]] = []
    for match in _BRACKET.finditer(text, start, end):
        char = match.group()
        if char in _CLOSING:
            stack.append((match.start(), char))
        elif char in ")]}" and stack:
            stack.pop()
    return stack


def _word_before(text: str, start: int, at: int) -> str | None:
    """Give the word that ends just before a place, if one does."""
    piece = text[max(start, at - 200) : at].rstrip()
    match = re.search(r"[\w'′}\])]+\Z", piece)
    if match is None:
        return None
    if piece[-1] in "}])":
        whole = re.search(r"[\w'′\\]*[\[{(][^\[\](){}]*[\]})]\Z", piece)
        return whole.group() if whole else None
    return match.group()


def _first_word(text: str, chunk: Chunk) -> str:
    match = _WORD.match(text, chunk.start, chunk.end)
    return "" if match is None else match.group()


def _sign_at(text: str, chunk: Chunk, at: int) -> Span | None:
    """Find a sign such as `:=` or `=>` around a place."""
    for start in range(max(chunk.start, at - 2), at + 1):
        match = _SIGNS.match(text, start, chunk.end)
        if match and match.end() > at:
            return Span(start, match.end())
    return None


def _arrow_at(text: str, chunk: Chunk, at: int) -> Span | None:
    """Find an arrow at a place; the `-` of one may have been read as a sign already."""
    start = at - 1 if at > chunk.start and text.startswith("->", at - 1) else at
    match = _ARROW.match(text, start, chunk.end)
    return None if match is None else Span(start, match.end())


def _only_more(accepts: frozenset[str], opening: str) -> bool:
    """Say whether the bracket that is open can't be closed at this place."""
    return {"(": "RPAR", "[": "RSQB", "{": "RBRACE"}[opening] not in accepts


def _wrong_closing(
    text: str, place: Span, char: str, opened: list[tuple[int, str]], accepts: frozenset[str]
) -> FormError:
    """Explain a closing bracket at the wrong place."""
    last = Span(place.end - 1, place.end)
    if not opened:
        return FormError(last, WrongBracket(char, None, None))
    start, opening = opened[-1]
    if _CLOSING[opening] != char:
        label = Label(Span(start, start + 1), "opened here")
        return FormError(last, WrongBracket(char, opening, _CLOSING[opening]), [label])
    what = _operand(text, place.start, opened, accepts)
    return FormError(place, Expected(what, shown(text[place.start : place.end])))


def _operand(text: str, at: int, opened: list[tuple[int, str]], accepts: frozenset[str]) -> str:
    """Name what a name would be at a place."""
    inner = opened[-1] if opened else None
    if inner is not None and inner[1] == "[":
        last = text[inner[0] : at].rstrip()[-1:]
        return "a mesh axis" if last == "/" else "a dim, such as `B` or `B_X`"
    if inner is not None and inner[1] == "{":
        subscript = text[: inner[0]].rstrip()[-1:] in ("_", "t", "f")
        return "an axis or a dim" if subscript else "a mark such as `U_X`"
    if accepts >= _OPERANDS and "LSQB" in accepts:
        return "a tensor, a number or `(`"
    if "NUMBER" in accepts and "LSQB" not in accepts:
        return "a size"
    return "a name"


def _expected(text: str, at: int, accepts: frozenset[str], opened: list[tuple[int, str]]) -> str:
    """Say in the words of the notation what fits at a place."""
    phrases: list[str] = []
    if accepts & {"NAME", "NUMBER"} and "PLUS" not in accepts and "COMMA" not in accepts:
        phrases.append(_operand(text, at, opened, accepts))
    elif "PLUS" in accepts:
        phrases.append("an operator")
    phrases += [words for name, words in _PLAIN.items() if name in accepts and words not in phrases]
    if "an operator" in phrases:
        phrases = [p for p in phrases if p not in ("`[`", "`:`", "`|`")]
        if phrases == ["an operator"] and "$END" in accepts:
            phrases.append("the end of the line")
    elif phrases and phrases[0][0] == "a":
        phrases = phrases[:1]
    if not phrases:
        phrases = ["the end of the line"]
    if len(phrases) == 1:
        return phrases[0]
    return ", ".join(phrases[:-1]) + " or " + phrases[-1]
