// The page around the two windows: makes a conversation and a token for each of them, with a key that stays in memory.

const STORED = "turnkeep-demo";
const one = (id) => document.getElementById(id);
let key = null;

async function call(path, body) {
  const answer = await fetch(path, {
    method: "POST",
    headers: { Authorization: `Bearer ${key}`, "Content-Type": "application/json" },
    body: JSON.stringify(body),
  });
  const said = await answer.json().catch(() => ({}));
  if (!answer.ok) throw new Error(said.detail ?? `The server answers ${answer.status}.`);
  return said;
}

async function begin() {
  const { id } = await call("/v1/conversations", { title: "Two windows of one chat" });
  const tokens = `/v1/conversations/${id}/tokens`;
  const left = await call(tokens, { access: "append", actor: "model", roles: ["assistant"], ttl_s: 3600 });
  const right = await call(tokens, { access: "append", actor: "you", roles: ["user"], ttl_s: 3600 });
  // of this tab only, so that a reload finds them: short-lived tokens for one conversation, never the key
  sessionStorage.setItem(STORED, JSON.stringify({ id, left: left.token, right: right.token }));
}

function show() {
  const stored = JSON.parse(sessionStorage.getItem(STORED) ?? "null");
  one("start").hidden = stored !== null;
  one("windows").hidden = one("foot").hidden = stored === null;
  for (const side of ["left", "right"]) {
    if (stored === null) one(side).removeAttribute("src");
    else one(side).src = `/dashboard/demo/window#${side}`;
  }
  one("conversation").textContent = stored?.id ?? "";
  if (stored === null) one("key").focus();
}

one("start").addEventListener("submit", async (event) => {
  event.preventDefault();
  key = one("key").value.trim();
  one("problem").hidden = true;
  try {
    await begin();
    one("key").value = "";
    show();
  } catch (error) {
    one("problem").textContent = error.message;
    one("problem").hidden = false;
  }
});

one("over").addEventListener("click", () => {
  sessionStorage.removeItem(STORED);
  show();
});
for (const side of ["left", "right"]) {
  one(`reload-${side}`).addEventListener("click", () => one(side).contentWindow.location.reload());
}

// A token lets nothing take another turn's place, so the left window asks the holder of the key for it, as a page asks
// its backend: the turn is opened here, and the window goes on with it as the same writer.
window.addEventListener("message", async ({ origin, source, data }) => {
  if (origin !== location.origin || source !== one("left").contentWindow || data?.ask !== "regenerate") return;
  try {
    if (key === null) throw new Error("The key is gone with the reload of this page: start over to regenerate.");
    await call(`/v1/conversations/${JSON.parse(sessionStorage.getItem(STORED)).id}/turns/open`, data.opening);
  } catch (error) {
    source.postMessage({ refused: error.message }, location.origin);
  }
});

show();
