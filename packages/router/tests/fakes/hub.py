"""A hub on 127.0.0.1 that can create, fill and download repositories."""

import base64
import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

GOOD_TOKEN = "hf_goodgoodgoodgood"
BRANCH = "main"


@dataclass
class FakeHub:
    """The content of the hub, and its requests.

    Attributes:
        url: Its address.
        repositories: The files of each, by name; datasets among them.
        gated: Those that are given only to who has the token.
        blobs: What was uploaded as large files, by SHA-256.
        requests: Method and path of each request, in order.
    """

    url: str = ""
    repositories: dict[str, dict[str, bytes]] = field(default_factory=dict)
    gated: set[str] = field(default_factory=set)
    blobs: dict[str, bytes] = field(default_factory=dict)
    requests: list[str] = field(default_factory=list)

    def downloaded(self) -> set[str]:
        """The names of the files that were fetched."""
        paths = (path for method, _, path in (r.partition(" ") for r in self.requests))
        resolved = (path.partition("/resolve/")[2] for path in paths)
        return {path.partition("/")[2] for path in resolved if path}

    def commit(self, name: str) -> str:
        """The commit of a repository's present content."""
        content = repr(sorted(self.repositories[name].items())).encode()
        return hashlib.sha1(content, usedforsecurity=False).hexdigest()


@contextmanager
def serve_hub() -> Iterator[FakeHub]:
    """A hub that answers as long as the context lasts."""
    hub = FakeHub()
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"hub": hub}))
    hub.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _Handler(BaseHTTPRequestHandler):
    hub: FakeHub
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        del format, args

    def do_GET(self) -> None:
        self._answer()

    def do_HEAD(self) -> None:
        self._answer()

    def do_POST(self) -> None:
        self._answer()

    def do_PUT(self) -> None:
        self._answer()

    def _answer(self) -> None:
        path = unquote(urlsplit(self.path).path)
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.hub.requests.append(f"{self.command} {path}")
        if path.startswith("/storage/"):
            self._store(path.removeprefix("/storage/"), body)
        elif self.headers.get("Authorization") not in (None, f"Bearer {GOOD_TOKEN}"):
            self._refuse(401, "", "Invalid credentials in Authorization header")
        elif self.command == "POST" and "Authorization" not in self.headers:
            self._refuse(401, "", "Invalid username or password.")
        elif path == "/api/repos/create":
            self._create(json.loads(body))
        elif path == "/api/validate-yaml":
            self._send_json({"errors": [], "warnings": []})
        else:
            self._of_repository(path, body)

    def _create(self, request: dict[str, Any]) -> None:
        name = f"{request.get('organization') or 'somebody'}/{request['name']}"
        self.hub.repositories.setdefault(name, {})
        self._send_json({"url": f"{self.hub.url}/{name}", "name": name})

    def _of_repository(self, path: str, body: bytes) -> None:
        for kind in ("/api/models/", "/api/datasets/", "/datasets/"):
            path = path.removeprefix(kind)
        parts = path.strip("/").split("/")
        name, what = "/".join(parts[:2]).removesuffix(".git"), parts[2:]
        if name not in self.hub.repositories:
            self._refuse(404, "RepoNotFound", "Repository not found")
        elif name in self.hub.gated and "Authorization" not in self.headers:
            self._refuse(401, "GatedRepo", "Access is restricted")
        elif what and what[0] in ("revision", "tree", "resolve") and not self._is_known(name, what):
            self._refuse(404, "RevisionNotFound", "Invalid rev id")
        elif what and what[0] == "resolve":
            self._file(name, "/".join(what[2:]))
        elif what and what[0] == "tree":
            self._tree(name, "/".join(what[2:]))
        else:
            kind = what[0].replace("-", "_") if what else "revision"
            self._send_json(getattr(self, f"_{kind}")(name, body))

    def _is_known(self, name: str, what: list[str]) -> bool:
        return what[1] in (BRANCH, self.hub.commit(name))

    def _revision(self, name: str, body: bytes) -> Any:
        del body
        siblings = [{"rfilename": path} for path in self.hub.repositories[name]]
        return {"id": name, "sha": self.hub.commit(name), "siblings": siblings, "tags": []}

    def _paths_info(self, name: str, body: bytes) -> Any:
        paths, files = parse_qs(body.decode())["paths"], self.hub.repositories[name]
        return [_describe_file(path, files[path]) for path in paths if path in files]

    def _tree(self, name: str, folder: str) -> None:
        """The files and folders in a folder, or all files below."""
        start, files = f"{folder}/" if folder else "", self.hub.repositories[name]
        below = {path: files[path] for path in files if path.startswith(start)}
        if folder and not below:
            self._refuse(404, "EntryNotFound", "Entry not found")
            return
        inner = {path: path.removeprefix(start).partition("/") for path in below}
        deep = "true" in parse_qs(urlsplit(self.path).query.lower()).get("recursive", ())
        files = {path: below[path] for path, (_, mark, _) in inner.items() if deep or not mark}
        folders = {first for first, mark, _ in inner.values() if mark} if not deep else set()
        self._send_json(
            [_describe_file(path, content) for path, content in files.items()]
            + [{"type": "directory", "path": start + name, "oid": "0" * 40} for name in folders]
        )

    def _preupload(self, name: str, body: bytes) -> Any:
        del name
        return {
            "files": [
                {
                    "path": file["path"],
                    "uploadMode": "lfs" if file["path"].endswith(".safetensors") else "regular",
                    "shouldIgnore": False,
                }
                for file in json.loads(body)["files"]
            ]
        }

    def _info(self, name: str, body: bytes) -> Any:  # NAME.git/info/lfs/objects/batch
        del name
        return {
            "transfer": "basic",
            "objects": [
                {**item, "actions": {"upload": {"href": f"{self.hub.url}/storage/{item['oid']}"}}}
                for item in json.loads(body)["objects"]
            ],
        }

    def _commit(self, name: str, body: bytes) -> Any:
        files = self.hub.repositories[name]
        for line in map(json.loads, body.splitlines()):
            value = line["value"]
            if line["key"] == "file":
                files[value["path"]] = base64.b64decode(value["content"])
            elif line["key"] == "lfsFile":
                files[value["path"]] = self.hub.blobs[value["oid"]]
            elif line["key"] == "deletedFile":
                del files[value["path"]]
        commit = self.hub.commit(name)
        return {"commitUrl": f"{self.hub.url}/{name}/commit/{commit}", "commitOid": commit}

    def _store(self, oid: str, body: bytes) -> None:
        assert hashlib.sha256(body).hexdigest() == oid
        self.hub.blobs[oid] = body
        self._send(200, b"", {})

    def _file(self, name: str, path: str) -> None:
        files = self.hub.repositories[name]
        if path not in files:
            self._refuse(404, "EntryNotFound", "Entry not found")
            return
        headers = {"ETag": f'"{_git_id(files[path])}"', "X-Repo-Commit": self.hub.commit(name)}
        self._send(200, files[path], headers)

    def _refuse(self, status: int, code: str, message: str) -> None:
        headers = {"X-Error-Code": code} if code else {}
        body = json.dumps({"error": message}).encode()
        self._send(status, body, {**headers, "X-Error-Message": message})

    def _send_json(self, value: Any) -> None:
        self._send(200, json.dumps(value).encode(), {"Content-Type": "application/json"})

    def _send(self, status: int, body: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        for key, value in {**headers, "Content-Length": str(len(body))}.items():
            self.send_header(key, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)


def _describe_file(path: str, content: bytes) -> dict[str, Any]:
    return {"type": "file", "path": path, "size": len(content), "oid": _git_id(content)}


def _git_id(content: bytes) -> str:
    head = f"blob {len(content)}\0".encode()
    return hashlib.sha1(head + content, usedforsecurity=False).hexdigest()
