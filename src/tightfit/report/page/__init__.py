"""One self-contained HTML page of a trace."""

from tightfit.report.page.page import page

__all__ = ["page"]
