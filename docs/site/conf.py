"""Configuration of Sphinx for the documentation site. tools/docs calls it."""
import re

from docutils import nodes
from sphinx import addnodes
from sphinx.domains import c, cpp

project = html_title = "libddp"
extensions = ["myst_parser"]
root_doc = "README"
add_function_parentheses = False
highlight_language = "text"
myst_heading_anchors = 6
myst_ref_domains = ["std"]
nitpick_ignore_regex = [("c:identifier", r"u?int\d+_t|size_t"), ("cpp:identifier", r"(std|torch|detail)(::.*)?|u?int\d+_t")]
smartquotes = False

html_theme = "furo"
html_static_path = ["site.css"]
html_css_files = ["site.css"]
html_additional_pages = {"index": "redirect.html"}  # the front page is README.html
templates_path = ["."]
html_copy_source = False
html_show_copyright = False

NAME = re.compile(r"(?:ddp_|DDP_)\w+(?:\.\w+)*(?=$|\()")


def link_names(app, doctree):
    """Code that is the name of something with a place on the site becomes a link: `ddp_finalize`, `group.h`, `docs/steps.md`."""
    docname = app.env.docname
    for literal in list(doctree.findall(nodes.literal)):
        name = literal.astext()
        if isinstance(literal.parent, (nodes.title, nodes.reference, nodes.inline, addnodes.pending_xref)):
            continue
        for page in (name.removesuffix(".md"), f"include/ddp/{name}"):
            if page in app.env.found_docs and page != docname and "." in name:
                target = dict(refdomain="std", reftype="doc", reftarget="/" + page, refexplicit=True)
                break
        else:
            if docname.startswith("include/") and name.isupper():
                name = name if name.startswith("DDP_") else f"DDP_ERROR_{name}"
            if not (named := NAME.match(name)):
                continue
            target = dict(refdomain="c", reftype="identifier", reftarget=named[0])
        link = addnodes.pending_xref("", refdoc=docname, only_if_known=True, **target)
        literal.replace_self(link)
        link += literal


def resolve(app, env, node, content):
    """The types of C in declarations of C++, and what link_names took for a name."""
    if node["refdomain"] == "cpp" and NAME.match(node["reftarget"]):
        return env.get_domain("c").resolve_xref(env, node["refdoc"], app.builder, "identifier", node["reftarget"], node, content)
    return content if "only_if_known" in node else None


def listed(directive):
    """A directive whose names stand under "On this page". Sphinx 5.3 lists those of Python only."""
    class Listed(directive):
        def _object_hierarchy_parts(self, signature):
            return (self._toc_entry_name(signature),)

        def _toc_entry_name(self, signature):
            return list(signature.findall(addnodes.desc_name))[-1].astext()  # after the parameters of a template

    return Listed


def searched(domain):
    """A domain whose parameters of functions are not in the search, where they hide the functions."""
    class Searched(domain):
        def get_objects(self):
            for *object_, priority in super().get_objects():
                yield (*object_, -1 if object_[2].endswith("Param") else priority)

    return Searched


def setup(app):
    for domain in (c.CDomain, cpp.CPPDomain):
        app.add_domain(searched(domain), override=True)
    for domain, name, directive in (("c", "function", c.CFunctionObject), ("c", "struct", c.CStructObject), ("c", "type", c.CTypeObject),
                                    ("cpp", "class", cpp.CPPClassObject), ("cpp", "function", cpp.CPPFunctionObject)):
        app.add_directive_to_domain(domain, name, listed(directive), override=True)
    app.connect("doctree-read", link_names)
    app.connect("missing-reference", resolve)
