"""A page that computes a program's costs in the browser, for any sizes, meshes and chips.

Reports are priced here, and their formulas go into the page as numbers in lists (`formulas`), for
every way in which a mesh can lie on a chip (`meshes`). The page's script adds and multiplies them: it
is the same text for every program, and nothing of a program becomes code.
"""
