"""A Slack app whose channels are conversations of Turnkeep: see chat-platforms.md."""

import hashlib
import hmac
import json
import os
import re
import threading
import time
import uuid
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import httpx
from turnkeep_client import Turnkeep, TurnkeepError

SECRET = os.environ["SLACK_SIGNING_SECRET"].encode()
MAX_BYTES, MAX_AGE_S = 1_000_000, 300
turnkeep = Turnkeep()
model = httpx.Client(base_url=os.environ["MODEL_URL"], timeout=50)
slack = httpx.Client(
    base_url=os.environ.get("SLACK_API", "https://slack.com/api"),
    headers={"Authorization": f"Bearer {os.environ['SLACK_BOT_TOKEN']}"},
)
started, lock = set(), threading.Lock()


def ask_model(messages):
    request = {"model": os.environ.get("MODEL", "llama3.2"), "messages": messages}
    response = model.post("chat/completions", json=request).raise_for_status()
    return response.json()["choices"][0]["message"]["content"]


def is_signed(headers, body):
    sent = headers.get("X-Slack-Request-Timestamp", "")
    if not re.fullmatch("[0-9]{1,12}", sent) or abs(time.time() - int(sent)) > MAX_AGE_S:
        return False
    signed = hmac.new(SECRET, b"v0:" + sent.encode() + b":" + body, hashlib.sha256)
    return hmac.compare_digest(f"v0={signed.hexdigest()}".encode(), headers.get("X-Slack-Signature", "").encode())


def handle(payload):
    """Store a message before Slack gets its response, then answer it in a thread."""
    event = payload.get("event", {})
    if event.get("type") != "message" or "subtype" in event or "bot_id" in event:
        return  # an edit, a message of a bot, or another event
    bot = payload["authorizations"][0]["user_id"]
    name = f"slack-{payload['team_id']}-{event['channel']}"
    room = turnkeep.conversation(name, owner=name)
    # the time of a message is its id in the channel; Slack's `event_id` differs between two events of one message
    question, answer = (str(uuid.uuid5(uuid.NAMESPACE_URL, f"{name}/{event['ts']}/{n}")) for n in (0, 1))
    room.append({"id": question, "role": "user", "actor": event["user"], "content": event["text"]})
    if event.get("channel_type") != "im" and f"<@{bot}>" not in event["text"]:
        return
    with lock:
        if answer in started:
            return
        started.add(answer)
    threading.Thread(target=reply, args=(room, answer, bot, event)).start()


def reply(room, answer, bot, event):
    try:
        if not is_stored(room, answer):
            answer_now(room, answer, bot, event)
    finally:
        started.discard(answer)


def is_stored(room, turn_id):
    try:
        return bool(turnkeep.api.get_turn(room.id, turn_id))
    except TurnkeepError as error:
        if error.code != "not_found":
            raise
        return False


def answer_now(room, answer, bot, event):
    system = f"You are <@{bot}> in a Slack channel. Refer to people as <@NAME>."
    context = room.context(4000, system=system, semantic_recall={"k": 5})
    said = ask_model(context["messages"])
    room.append({"id": answer, "role": "assistant", "actor": bot, "content": said})
    posted = slack.post("chat.postMessage", json={"channel": event["channel"], "text": said}).raise_for_status().json()
    if not posted["ok"]:
        raise RuntimeError(posted["error"])


class Webhook(BaseHTTPRequestHandler):
    timeout = 60

    def do_POST(self):
        size = int(self.headers.get("Content-Length", 0))
        body = self.rfile.read(size) if 0 <= size <= MAX_BYTES else b""
        if not is_signed(self.headers, body):
            return self.respond(403, b"")
        payload = json.loads(body)
        if payload["type"] == "url_verification":
            return self.respond(200, payload["challenge"].encode())
        try:
            handle(payload)
        except Exception as error:
            self.log_error("%r", error)
            return self.respond(500, b"")  # Slack sends the event again
        return self.respond(200, b"")

    def respond(self, status, content):
        self.send_response(status)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)


ThreadingHTTPServer(("127.0.0.1", int(os.environ.get("PORT", "8080"))), Webhook).serve_forever()
