"""Writes all pages again. Usage: `python -m scripts.reference`."""

from scripts.reference.pages import ROOT, current_text, page_names

if __name__ == "__main__":
    for name in page_names():
        (ROOT / name).write_text(current_text(name))
