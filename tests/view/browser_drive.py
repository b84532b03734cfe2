#!/usr/bin/env python3
"""Drives a page in a headless browser by the DevTools protocol: hovers, presses keys, and looks at what the page then shows.

    browser_drive.py CHROMIUM DIR     # DIR holds compare.html and large.html
"""

import base64
import json
import os
import pathlib
import socket
import subprocess
import sys
import time
import urllib.request


class Socket:
    """The few pieces of RFC 6455 that a local browser needs."""

    def __init__(self, url):
        host, path = url.removeprefix("ws://").split("/", 1)
        name, port = host.split(":")
        self.stream = socket.create_connection((name, int(port)), timeout=60)
        key = base64.b64encode(os.urandom(16)).decode()
        self.stream.sendall(f"GET /{path} HTTP/1.1\r\nHost: {host}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
                            f"Sec-WebSocket-Key: {key}\r\nSec-WebSocket-Version: 13\r\n\r\n".encode())
        self.rest = b""
        while b"\r\n\r\n" not in self.rest:
            self.rest += self.stream.recv(4096)
        self.rest = self.rest.split(b"\r\n\r\n", 1)[1]

    def take(self, count):
        while len(self.rest) < count:
            more = self.stream.recv(1 << 16)
            if not more:
                sys.exit("the browser is gone")
            self.rest += more
        taken, self.rest = self.rest[:count], self.rest[count:]
        return taken

    def send(self, text):
        data, mask = text.encode(), os.urandom(4)
        size = len(data)
        head = bytes([0x81, 0x80 | size]) if size < 126 else bytes([0x81, 0xFE]) + size.to_bytes(2, "big")
        self.stream.sendall(head + mask + bytes(b ^ mask[i % 4] for i, b in enumerate(data)))

    def receive(self):
        text = b""
        while True:
            first, second = self.take(2)
            size = second & 0x7F
            if size > 125:
                size = int.from_bytes(self.take(2 if size == 126 else 8), "big")
            text += self.take(size)
            if first & 0x80:
                return json.loads(text)


class Page:
    def __init__(self, url):
        self.socket = Socket(url)
        self.number = 0
        self.complaints = []
        for domain in ("Runtime", "Page", "Log"):
            self.call(f"{domain}.enable")

    def call(self, method, **parameters):
        self.number += 1
        self.socket.send(json.dumps({"id": self.number, "method": method, "params": parameters}))
        while True:
            message = self.socket.receive()
            if message.get("method") in ("Runtime.exceptionThrown", "Runtime.consoleAPICalled", "Log.entryAdded"):
                self.complaints.append(message["params"])
            if message.get("id") == self.number:
                if "error" in message:
                    sys.exit(f"{method}: {message['error']}")
                return message["result"]

    def value(self, expression):
        # Behind the next frame, so that what was asked for is drawn.
        wait = "new Promise(r => requestAnimationFrame(() => requestAnimationFrame(r)))"
        result = self.call("Runtime.evaluate", expression=f"{wait}.then(() => {expression})", awaitPromise=True,
                           returnByValue=True)
        if "exceptionDetails" in result:
            sys.exit(f"{expression}: {result['exceptionDetails']}")
        return result["result"].get("value")

    def open(self, path):
        self.call("Page.navigate", url=f"file://{path}")
        for _ in range(600):
            if self.value("document.readyState === 'complete' && !!document.querySelector('[data-ready=\"1\"]')"):
                return
            time.sleep(0.1)
        sys.exit(f"{path}: did not draw itself")

    def press(self, key):
        text = {"text": key} if len(key) == 1 else {}
        self.call("Input.dispatchKeyEvent", type="keyDown", key=key, **text)
        self.call("Input.dispatchKeyEvent", type="keyUp", key=key)

    def picture(self):
        return self.value("document.getElementById('view').toDataURL()")


def check(page, what, holds):
    if not holds:
        sys.exit(f"{what}: does not hold")
    print(f"  {what}")


def drive(page, path):
    print(path.name)
    page.open(path)
    fitted = page.picture()
    for key in ("+", "ArrowRight", "ArrowLeft", "-"):
        before = page.picture()
        page.press(key)
        check(page, f"{key} changes the picture", page.picture() != before)
    page.press("0")
    check(page, "0 shows the whole step again", page.picture() == fitted)

    box = page.value("(() => { const r = document.getElementById('view').getBoundingClientRect();"
                     " return [r.left, r.top, r.width, Math.min(r.height, innerHeight - r.top)]; })()")
    text = ""
    for row in range(12):
        for column in range(12):
            page.call("Input.dispatchMouseEvent", type="mouseMoved", x=box[0] + box[2] * (column + 0.5) / 12,
                      y=box[1] + box[3] * (row + 0.5) / 12)
            text = page.value("(t => t.style.display === 'block' ? t.textContent : '')(document.getElementById('tip'))")
            if text:
                break
        if text:
            break
    check(page, f"hovering tells of an op: {text.splitlines()[0] if text else ''}", bool(text))
    page.press("Escape")
    check(page, "Escape hides it", page.value("document.getElementById('tip').style.display") == "none")

    reached = set()
    for _ in range(12):
        page.press("Tab")
        reached.add(page.value("document.activeElement.id || document.activeElement.tagName"))
    check(page, f"Tab reaches the buttons: {', '.join(sorted(reached))}", {"fit", "in", "out"} <= reached)
    check(page, "nothing was written to the console", not page.complaints)


def main():
    chromium, folder = sys.argv[1], pathlib.Path(sys.argv[2]).resolve()
    profile = folder / "driven"
    browser = subprocess.Popen([chromium, "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={profile}",
                                "--window-size=1400,900", "--remote-debugging-port=0", "--remote-allow-origins=*",
                                "about:blank"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        port = profile / "DevToolsActivePort"
        for _ in range(600):
            if port.exists() and port.read_text().count("\n"):
                break
            time.sleep(0.1)
        number = port.read_text().splitlines()[0]
        with urllib.request.urlopen(f"http://127.0.0.1:{number}/json/list", timeout=60) as answer:
            pages = json.load(answer)
        page = Page(next(p["webSocketDebuggerUrl"] for p in pages if p["type"] == "page"))
        for name in ("compare", "measured", "large"):
            drive(page, folder / f"{name}.html")
    finally:
        browser.terminate()
        browser.wait()


if __name__ == "__main__":
    main()
