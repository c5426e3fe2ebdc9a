"""Writes the page of a public header, in reStructuredText with Sphinx's directives for C and C++.

The headers have plain comments. Where a comment stands says what it is about:
  - at the beginning: the file
  - before declarations, without an empty line between: these declarations, but only the first field, enumerator or part of a class
  - behind a declaration, in the same line: this declaration
  - alone between empty lines: a section, whose title are the words in capitals at the beginning
A function takes the four facts of status.h from its comment, from the function that its comment names, from its paragraph or from its
section, as tests/install/docs.py does.
"""
import re
import typing

FACTS = ("Threads", "Blocks", "Collective", "Callbacks")
FACT = re.compile(rf"(?<!\S)({'|'.join(FACTS)}): (.*?)\.?(?=\s+(?:{'|'.join(FACTS)}): |\s*$)", re.DOTALL)
SAME_FACTS = re.compile(r"\bfacts\s+as\s+(ddp_\w+)")
ERRORS = re.compile(r"(?<!\S)Errors: ")
TITLE = re.compile(r"([A-Z][A-Z -]*[A-Z](?:, [a-z ]+)?)\.(?!\S)")
PARAMETER = re.compile(r"(\*?([a-z]\w*)(?:\[\w*\])?): ")
# Names that a comment may write without backquotes and that are code nevertheless; error codes come to these.
NAMES = r"(?:ddp_|DDP_)\w+(?:\.\w+)*|(?:docs/)?\w+\.(?:h|hpp|md)\b"

SPACE = re.compile(r"\s*")
COMMENT = re.compile(r"/\*.*?\*/|//[^\n]*", re.DOTALL)
TOKEN = re.compile(COMMENT.pattern + r"""|"(?:\\.|[^"\\])*"|'(?:\\.|[^'\\])'|[][(){};]""", re.DOTALL)
SKIPPED = re.compile(r"#(?!define)[^\n]*|DDP_EXTERN_C_\w+")
ACCESS = re.compile(r"(public|private|protected):")
ENUMERATOR = re.compile(r"(\w+(?: = [^,/]*[^,/\s])?),?")
TEMPLATE = re.compile(r"template <[^{}()]*> ")
TYPE = re.compile(rf"(?:{TEMPLATE.pattern})?(?:typedef|enum|struct|class)\b(?!.*\()")
# Parts of C++ without a place in the reference: inner namespaces, specializations, deduction guides, names of other classes, deleted
# functions.
UNLISTED = re.compile(r"^namespace|^template <>|(?<!operator)->|^using [\w:]+$|= delete$")
INCLUDE = re.compile(r'^#include "([\w./]+)"$', re.MULTILINE)


class Item(typing.NamedTuple):
    kind: str  # comment, behind (a comment behind a declaration), declaration, access (private, ...), gap (an empty line)
    text: str = ""
    body: str = None  # what a declaration has between braces


def find(text, start, ends):
    """Where the first of the characters `ends` is, outside of comments, strings and brackets."""
    depth = 0
    for token in TOKEN.finditer(text, start):
        if depth == 0 and token[0] in ends:
            return token.start()
        depth += (token[0] in "([{") - (token[0] in ")]}")
    return len(text)


def declaration(text, start):
    """The declaration that begins at `start`, and where it ends."""
    end = find(text, start, "{;")
    head, body = " ".join(COMMENT.sub("", text[start:end]).split()), None
    if text[end:end + 1] == "{":
        start, end = end + 1, find(text, end + 1, "}")
        body = text[start:end]
        if TYPE.match(head):
            end = find(text, end + 1, ";")
    return Item("declaration", head, body), end + 1


def scan(text, enumerators=False):
    """The items of a file, or of what stands between the braces of a declaration."""
    position = conditions = 0
    while True:
        space = SPACE.match(text, position)
        position = space.end()
        if space[0].count("\n") > 1:
            yield Item("gap")
        if position == len(text):
            return
        if comment := COMMENT.match(text, position):
            if comment[0].startswith("/*"):
                yield Item("behind" if position > 0 and "\n" not in space[0] else "comment", comment[0])
            position = comment.end()
        elif skipped := SKIPPED.match(text, position):
            conditions += skipped[0].startswith("#if") - skipped[0].startswith("#endif")
            position = skipped.end()
        elif text.startswith("#define", position):
            line = text[position:].split("\n", 1)[0]
            if conditions == 1 and len(line.split()) > 2:  # not the guard of the file, and not inside another #if
                yield Item("declaration", line)
            position += len(line)
        elif access := ACCESS.match(text, position):
            yield Item("access", access[1])
            position = access.end()
        elif enumerators:
            enumerator = ENUMERATOR.match(text, position)
            yield Item("declaration", enumerator[1])
            position = enumerator.end()
        else:
            item, position = declaration(text, position)
            yield item


def groups(items, shared):
    """(comment, declarations) of what belongs together, and (None, []) for an empty line. With `shared` a comment before several
    declarations is about all of them."""
    comment, members = None, []
    for item in items:
        if item.kind in ("declaration", "access") and (shared or not members):
            members.append(item)
            continue
        last = [members.pop()] if item.kind == "behind" else None
        if comment or members:
            yield comment, members
        comment, members = None, []
        if last:
            yield item, last
        elif item.kind == "comment":
            comment = item
        elif item.kind == "gap":
            yield None, []
        else:
            members.append(item)
    if comment or members:
        yield comment, members


def lines_of(comment):
    """The lines of a comment without the stars before them."""
    first, *rest = comment.text[2:-2].rstrip().split("\n") if comment else [""]
    return [first.strip(), *(re.sub(r"^\s*\* ?", "", line) if line.lstrip().startswith("*") else line.strip() for line in rest)]


def blocks(lines, parameters):
    """[kind, lines] of each block: text, item (of a list), code. Lines `name: ...` are items if they name one of `parameters` and the
    text does not go on below without an indentation."""
    found, base = [], 0  # base: the indentation of the last block's text
    closed = True  # an empty line came before
    for number, line in enumerate(lines):
        text = line.lstrip()
        depth = len(line) - len(text)
        below = lines[number + 1] if number + 1 < len(lines) else ""
        kind, before = found[-1] if found else ("", [""])
        named = PARAMETER.match(line)
        if not text:
            closed = True
            if kind == "code":
                before.append("")
            continue
        if text.startswith("- ") and depth <= 2:
            found.append(("item", [text[2:]]))
            base = depth + 2
        elif (named and named[2] in parameters and (closed or before[-1].endswith("."))
              and (not below or below[0] == " " or PARAMETER.match(below)) and (found or PARAMETER.match(below))):
            found.append(("item", [f"`{named[1]}`: {line[named.end():]}"]))
            base = 4
        elif depth > base and (closed or kind == "code" or before[-1].endswith(":")):
            if kind != "code":
                found.append(("code", []))
            found[-1][1].append(line[base:])
        elif closed or kind == "code" or depth < base:
            found.append(("text", [text]))
            base = depth
        else:
            before.append(text)
        closed = False
    return found


class Page:
    facts_of = {}  # by function, of the pages so far: "facts as ddp_x" may name a function of another header

    def __init__(self, header, codes):
        self.out = []
        self.code = re.compile(rf"`([^`]+)`|\b({NAMES}|{'|'.join(codes)})(?![\w*])")
        self.section, self.paragraph = {}, {}
        about, *items = scan(header.read_text(encoding="utf-8"))
        first, *rest = lines_of(about)
        first = first.removeprefix(header.name + ": ")
        self.write("", header.name, "=" * len(header.name), "")
        self.prose([first[0].upper() + first[1:], *rest], "")
        if header.suffix == ".hpp":
            self.write("", ".. cpp:namespace:: ddp", "")
            self.cpp_items(items, "", public=True)
        else:
            self.c_items(items)
        if not any(item.kind == "declaration" for item in items) and (others := included(header)):
            self.contents(others)

    def write(self, indent, *lines):
        self.out += [(indent + line).rstrip() for line in lines]

    def contents(self, others):
        """The page of a header that only includes others."""
        for path in others:
            about = lines_of(next(scan(path.read_text(encoding="utf-8"))))
            self.write("", "- " + self.inline(about[:about.index("") if "" in about else None]))
        self.write("", "", ".. toctree::", "", *("   " + path.name for path in others), "")

    def directive(self, name, signatures, indent):
        opening = f".. {name}:: "
        self.write(indent, opening + signatures[0], *(" " * len(opening) + more for more in signatures[1:]), "")

    def inline(self, lines):
        """Text with its code marked; link_names in conf.py makes links of it."""
        text, parts, end = " ".join(" ".join(lines).split()), [], 0

        def escaped(plain):
            return re.sub(r"[\\*`|_]|:(?=//)", r"\\\g<0>", plain)

        for match in self.code.finditer(text):
            parts += [escaped(text[end:match.start()]), f"\\ ``{match[1] or match[2]}``\\ "]
            end = match.end()
        return "".join([*parts, escaped(text[end:])])

    def prose(self, lines, indent, parameters=()):
        inside = ""  # code after an item belongs to the item
        for kind, block in blocks(lines, parameters):
            if kind == "code":
                self.write(indent + inside, "::", "", *("   " + line for line in block), "")
                continue
            text = self.inline(block)
            if title := TITLE.match(text):
                text = f"**{title[0]}**{text[title.end():]}"
            self.write(indent, "- " * (kind == "item") + text, "")
            inside = "  " * (kind == "item")

    def comment(self, lines, indent, functions=(), parameters=()):
        """Writes a comment, with the errors and the facts in lines of their own. The functions get all facts that hold for them."""
        text = "\n".join(lines)
        facts = {fact: self.inline(value.split("\n")) for fact, value in FACT.findall(text)}
        if facts:
            text = text[:FACT.search(text).start()]
        text, *errors = ERRORS.split(text)
        self.prose(text.split("\n"), indent, parameters)
        for line in errors:
            self.write(indent, ".. rst-class:: errors", "", f"**Errors:** {self.inline(line.split())}", "")
        if functions:
            if len(facts) == len(FACTS):
                self.paragraph = facts
            same = SAME_FACTS.search(" ".join(lines))
            facts = {**self.section, **self.paragraph, **(self.facts_of[same[1]] if same else {}), **facts}
            self.facts_of.update(dict.fromkeys(functions, facts))
        if facts:
            line = " ".join(f"**{fact}:** {facts[fact]}." for fact in FACTS if fact in facts)
            self.write(indent, ".. rst-class:: facts", "", line, "")
        return facts

    def c_items(self, items):
        for comment, members in groups(items, shared=True):
            lines = lines_of(comment)
            functions = [member.text.removeprefix("DDP_API ") for member in members if member.text.startswith("DDP_API ")]
            if functions:
                self.directive("c:function", functions, "")
                names = [re.search(r"\b(ddp_\w+)\(", function)[1] for function in functions]
                self.comment(lines, "   ", names, re.findall(r"\w+", " ".join(functions)))
            elif members:
                for member in members:
                    self.c_type(member, lines)
                    lines = [""]
            elif comment:
                self.section_comment(lines)
            else:
                self.paragraph = {}

    def section_comment(self, lines):
        if title := TITLE.match(lines[0]):
            words = title[1].capitalize()
            self.write("", words, "-" * len(words), "")
            lines = [lines[0][title.end():].lstrip(), *lines[1:]]
        self.section = self.comment(lines, "", parameters=[named[2] for named in map(PARAMETER.match, lines) if named])

    def c_type(self, item, lines):
        head = item.text
        if head == "enum":
            self.comment(lines, "")
            self.write("", ".. container:: enum", "")
            self.members("c:enumerator", item.body, "   ")
        elif head.startswith("#define"):
            _, name, value = head.split(maxsplit=2)
            self.directive("c:macro", [name], "")
            self.comment([f"`{value}`", "", *lines], "   ")
        elif head.startswith("typedef struct"):
            self.directive("c:struct", [head.split()[2]], "")
            self.comment(lines, "   ")
            self.members("c:member", item.body or "", "   ")
        else:
            self.directive("c:type", [head.removeprefix("typedef ")], "")
            self.comment(lines, "   ", parameters=re.findall(r"\w+", head))

    def members(self, kind, body, indent):
        for comment, members in groups(scan(body, kind == "c:enumerator"), shared=False):
            if members:
                first, *more = members[0].text.split(", ") if "(" not in members[0].text else [members[0].text]
                self.directive(kind, [first, *(f"{first.rpartition(' ')[0]} {name}" for name in more)], indent)
            self.comment(lines_of(comment), indent + "   " * len(members))

    def cpp_items(self, items, indent, public):
        for comment, members in groups(items, shared=False):
            head = members[0].text if members else ""
            if members and members[0].kind == "access":
                public = head == "public"
            elif head == "namespace ddp":
                self.cpp_items(scan(members[0].body), indent, public)
            elif public and not UNLISTED.search(head):
                kind = self.cpp_directive(head, indent) if head else ""
                self.comment(lines_of(comment), indent + "   " * len(members))
                if kind == "cpp:class":
                    self.cpp_items(scan(members[0].body or ""), indent + "   ", public="struct " in head)

    def cpp_directive(self, head, indent):
        template = TEMPLATE.match(head)
        start = template.end() if template else 0
        word = head[start:].split()[0]
        kind = {"class": "class", "struct": "class", "using": "type"}.get(word, "function" if "(" in head else "member")
        if kind in ("class", "type"):
            head = head[:start] + head[start:].removeprefix(word + " ")
        head = re.sub(r"(\)(?: noexcept)?) ?:(?!:).*", r"\1", head)  # without what a constructor initialises
        self.directive(f"cpp:{kind}", [head], indent)
        return f"cpp:{kind}"


def included(header):
    """The headers of the same language that a header includes, directly and by way of others."""
    found = [header]
    for path in found:
        names = INCLUDE.findall(path.read_text(encoding="utf-8"))
        found += [header.parent / name for name in names if name.endswith(header.suffix) and header.parent / name not in found]
    return found[1:]


def page(header, codes):
    """The page of a header; `codes` are the error codes without DDP_ERROR_."""
    return "\n".join([*Page(header, codes).out, ""])
