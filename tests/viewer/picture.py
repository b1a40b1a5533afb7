"""The picture of docs/view.md: ``python -m tests.viewer.picture TRACE FILE.webp "#k12"``."""

from __future__ import annotations

import base64
import json
import shutil
import sys
import tempfile
from pathlib import Path

from playwright.sync_api import sync_playwright

from smelt.viewer import render

_SMALLER = """async (address) => {
    const image = await createImageBitmap(await (await fetch(address)).blob());
    const canvas = new OffscreenCanvas(image.width, image.height);
    canvas.getContext("2d").drawImage(image, 0, 0);
    const blob = await canvas.convertToBlob({ type: "image/webp", quality: 0.8 });
    const bytes = new Uint8Array(await blob.arrayBuffer());
    return btoa(Array.from(bytes, (byte) => String.fromCharCode(byte)).join(""));
}"""


def main(trace: Path, picture: Path, address: str = "") -> None:
    """A window of 1280 x 760 with what the address says pinned, as WebP."""
    with sync_playwright() as playwright, tempfile.TemporaryDirectory() as folder:
        page = Path(folder, "page.html")
        page.write_text(render(json.loads(trace.read_text("utf-8"))), "utf-8")
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        shown = browser.new_page(viewport={"width": 1280, "height": 760})
        shown.goto(f"{page.as_uri()}{address}")
        shown.wait_for_selector("html[data-ready]")
        shown.wait_for_timeout(200)
        taken = base64.b64encode(shown.screenshot()).decode()
        smaller = browser.new_page().evaluate(_SMALLER, f"data:image/png;base64,{taken}")
        picture.write_bytes(base64.b64decode(smaller))
        browser.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), *sys.argv[3:])
