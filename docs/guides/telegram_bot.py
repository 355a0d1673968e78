"""A Telegram bot whose rooms are conversations of Turnkeep: see chat-platforms.md."""

import hmac
import json
import os
import uuid
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import httpx
from turnkeep_client import Turnkeep, TurnkeepError

SECRET, BOT = os.environ["TELEGRAM_SECRET"], os.environ["TELEGRAM_BOT"]
MAX_BYTES = 1_000_000
turnkeep = Turnkeep()
model = httpx.Client(base_url=os.environ["MODEL_URL"], timeout=50)


def ask_model(messages):
    request = {"model": os.environ.get("MODEL", "llama3.2"), "messages": messages}
    response = model.post("chat/completions", json=request).raise_for_status()
    return response.json()["choices"][0]["message"]["content"]


def stored_text(room, turn_id):
    try:
        return turnkeep.api.get_turn(room.id, turn_id)["content"]
    except TurnkeepError as error:
        if error.code != "not_found":
            raise
        return None


def handle(update):
    """Store a message, and return the text of its answer; None for a message that is not to the bot."""
    message = update.get("message", {})
    if "text" not in message or "from" not in message:
        return None
    chat, sender, text = message["chat"], message["from"], message["text"]
    name = f"telegram-{BOT}-{chat['id']}"
    room = turnkeep.conversation(name, owner=name)
    question, answer = (str(uuid.uuid5(uuid.NAMESPACE_URL, f"{name}/{update['update_id']}/{n}")) for n in (0, 1))
    actor = f"{sender['first_name']}-{sender['id']}"
    room.append({"id": question, "role": "user", "actor": actor, "content": text})  # a repeated update stores nothing
    if chat["type"] != "private" and f"@{BOT}" not in text:
        return None
    if (known := stored_text(room, answer)) is not None:
        return known
    context = room.context(4000, system="You are a helpful bot in a chat.", semantic_recall={"k": 5})
    said = ask_model(context["messages"])
    try:
        room.append({"id": answer, "role": "assistant", "actor": BOT, "content": said})
    except TurnkeepError as error:
        if error.code != "turn_id_conflict":
            raise
        return stored_text(room, answer)  # another delivery of this update was faster
    return said


class Webhook(BaseHTTPRequestHandler):
    timeout = 60

    def do_POST(self):
        given = self.headers.get("X-Telegram-Bot-Api-Secret-Token", "")
        size = int(self.headers.get("Content-Length", 0))
        if not hmac.compare_digest(given.encode(), SECRET.encode()) or not 0 <= size <= MAX_BYTES:
            return self.respond(403, {})
        try:
            update = json.loads(self.rfile.read(size))
            said = handle(update)
        except Exception as error:
            self.log_error("%r", error)
            return self.respond(500, {})  # Telegram sends the update again
        if said is None:
            return self.respond(200, {})
        chat_id = update["message"]["chat"]["id"]
        return self.respond(200, {"method": "sendMessage", "chat_id": chat_id, "text": said[:4096]})

    def respond(self, status, body):
        content = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)


ThreadingHTTPServer(("127.0.0.1", int(os.environ.get("PORT", "8080"))), Webhook).serve_forever()
