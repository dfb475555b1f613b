"""The text of a page, without its markup."""

import re
from html import unescape


def text(page: str) -> str:
    """All of it, in one line."""
    return " ".join(unescape(re.sub(r"<[^>]*>", " ", page)).split())


def rows(page: str, caption: str) -> list[list[str]]:
    """The cells of a table, without those that head their row."""
    (table,) = re.findall(rf"<caption>{caption}</caption>(.*?)</table>", page, re.DOTALL)
    body = table.partition("<tbody>")[2]
    return [
        [text(cell) for cell in re.findall(r"<td.*?>(.*?)</td>", row, re.DOTALL)]
        for row in re.findall(r"<tr>(.*?)</tr>", body, re.DOTALL)
    ]


def stat(page: str, label: str) -> str:
    """The value of a figure."""
    (value,) = re.findall(rf"<dt>{label}</dt><dd>(.*?)</dd>", page, re.DOTALL)
    return text(value)
