"""A server that answers /health with 200 and everything else with the status that is given. ``half_dead.py STATUS --port PORT ...``"""

from __future__ import annotations

import http.server
import sys


class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        status = 200 if self.path.startswith("/health") else int(sys.argv[1])
        body = b"{}"
        self.send_response(status)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.do_GET()


port = int(sys.argv[sys.argv.index("--port") + 1])
http.server.ThreadingHTTPServer(("127.0.0.1", port), Handler).serve_forever()
