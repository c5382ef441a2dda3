"""Answers what a survey and a preflight ask. SMALL_SGLANG_VERSION is what it says it is."""

import http.server
import json
import os
import sys

argv = sys.argv[1:]


class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        answers = {
            "/ready": {},
            "/health": {},
            "/server_info": {"version": os.environ.get("SMALL_SGLANG_VERSION", "0.5.6"), "max_total_num_tokens": 8192},
            "/v1/loads": {"loads": [{"num_running_reqs": 2, "num_waiting_reqs": 1}]},
        }
        status = 200 if self.path in answers else 404
        body = json.dumps(answers.get(self.path)).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


if __name__ == "__main__":
    port = int(argv[argv.index("--port") + 1])
    http.server.ThreadingHTTPServer(("127.0.0.1", port), Handler).serve_forever()
