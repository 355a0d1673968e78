// The frame around all pages: navigation, keys, scheme, shortcuts; it loads the code of a page when it is opened.
import type { ComponentType } from "preact";
import { LocationProvider, useLocation } from "preact-iso";
import { exec } from "preact-iso/router";
import { useEffect, useState } from "preact/hooks";
import { api, body } from "./api/client";
import { chooseProject, currentSignIn, hasScope, session, signOut, switchSignIn } from "./api/session";
import { Empty, Loading, Toasts } from "./components/basics";
import { Dialog } from "./components/dialog";
import { time } from "./lib/format";
import { focusSearch, useKeys } from "./lib/keyboard";
import { scheme, switchScheme } from "./lib/scheme";
import { useStore } from "./lib/store";
import { pages, scopesOf, type PageEntry, type PageProps } from "./registry";
import { SignInPage } from "./pages/sign_in";
import { strings } from "./strings";

export function App() {
  return (
    <LocationProvider scope={/^\/dashboard(?!\/demo)/}>
      <Frame />
      <Toasts />
    </LocationProvider>
  );
}

function Frame() {
  const { path } = useLocation();
  const current = useStore(session);
  const signIn = currentSignIn(current);
  const [adding, setAdding] = useState(false);
  const [help, setHelp] = useState(false);
  const [isMenuOpen, setMenuOpen] = useState(false);
  useEffect(() => setMenuOpen(false), [path]);
  useKeys({ "/": focusSearch, "?": () => setHelp(true) });
  const found = findPage(path);
  useEffect(() => {
    document.title = `${found?.entry.title ?? strings.signIn.title} · ${strings.app.name}`;
  }, [found?.entry]);
  if (!signIn || adding) return <SignInPage onDone={() => setAdding(false)} {...(adding ? { onCancel: () => setAdding(false) } : {})} />;
  return (
    <div class="frame">
      <a class="skip" href="#page">
        {strings.app.skip}
      </a>
      <header class={isMenuOpen ? "side open" : "side"} onKeyDown={(event) => event.key === "Escape" && setMenuOpen(false)}>
        <a class="brand" href="/dashboard" aria-label={strings.app.name}>
          <Mark /> <span>{strings.app.name}</span>
        </a>
        <span class="here clip">{found?.entry.title}</span>
        <button class="menu-button" aria-expanded={isMenuOpen} aria-controls="menu" onClick={() => setMenuOpen(!isMenuOpen)}>{strings.app.menu}</button>
        <Navigation path={path} />
        <div class="foot">
          <div class="who stack">
            <KeySwitch />
            <ProjectField />
          </div>
          <div class="row">
            <button class="quiet" onClick={() => setAdding(true)}>{strings.app.addKey}</button>
            <SchemeSwitch />
            <button class="quiet" onClick={signOut}>{strings.app.signOut}</button>
          </div>
        </div>
      </header>
      <main id="page" class={found?.entry.fill ? "main fill" : "main"} tabIndex={-1}>
        {found ? (
          <Page key={`${current.current}:${found.entry.path}:${Object.values(found.params).join("/")}`} {...found} />
        ) : (
          <Empty>
            <h1>{strings.app.notFound}</h1>
            <a href="/dashboard">{strings.app.toConversations}</a>
          </Empty>
        )}
      </main>
      {help && <Shortcuts onClose={() => setHelp(false)} />}
    </div>
  );
}

function findPage(path: string): { entry: PageEntry; params: Record<string, string> } | null {
  for (const entry of pages) {
    const match = exec(path, entry.path, { path, query: {}, params: {} } as Parameters<typeof exec>[2]);
    if (match as typeof match | undefined) return { entry, params: match.params };
  }
  return null;
}

function Page({ entry, params }: { entry: PageEntry; params: Record<string, string> }) {
  const [loaded, setLoaded] = useState<{ component: ComponentType<PageProps> } | null>(null);
  useEffect(() => {
    let isCurrent = true;
    void entry.load().then((module) => isCurrent && setLoaded({ component: module.default }));
    return () => void (isCurrent = false);
  }, [entry]);
  if (!hasScope(...scopesOf(entry))) {
    return (
      <Empty>
        <h1>{entry.title}</h1>
        <p>{strings.app.missingScope(scopesOf(entry).join(` ${strings.app.or} `))}</p>
      </Empty>
    );
  }
  return loaded ? <loaded.component params={params} /> : <div class="empty"><Loading /></div>;
}

function Navigation({ path }: { path: string }) {
  const current = (entry: PageEntry) => (entry.path === "/dashboard" ? /^\/dashboard\/?$|^\/dashboard\/conversations/.test(path) : path.startsWith(entry.path));
  return (
    <nav id="menu" aria-label={strings.app.navigation}>
      {Object.entries(strings.app.groups).map(([group, title]) => {
        const shown = pages.filter((entry) => entry.group === group && hasScope(...scopesOf(entry)));
        return shown.length > 0 && (
          <div class="group" key={group}>
            <h2>{title}</h2>
            {shown.map((entry) => (
              <a key={entry.path} href={entry.path} aria-current={current(entry) ? "page" : undefined}>{entry.title}</a>
            ))}
          </div>
        );
      })}
    </nav>
  );
}

function KeySwitch() {
  const { signIns, current } = useStore(session);
  const expiresAt = signIns[current]?.expiresAt;
  return (
    <div class="field">
      <label for="key-switch">{strings.app.key}</label>
      <select id="key-switch" value={String(current)} onChange={(event) => switchSignIn(Number(event.currentTarget.value))}>
        {signIns.map(({ key, label, scopes }, index) => (
          <option key={key} value={String(index)}>
            {label} ({Object.entries(scopes).filter(([, has]) => has).map(([scope]) => scope).join(", ")})
          </option>
        ))}
      </select>
      {expiresAt && <p class="help">{strings.app.expires(time(expiresAt))}</p>}
    </div>
  );
}

/** The project that lists show. The largest ones are offered, if the key may count them. */
function ProjectField() {
  const { project } = useStore(session);
  const signIn = currentSignIn();
  const [known, setKnown] = useState<string[]>(signIn?.projects ?? []);
  useEffect(() => setKnown(signIn?.projects ?? []), [signIn?.key]);
  const find = async () => {
    if (known.length > 0 || !hasScope("admin")) return;
    const stats = await body(api.GET("/v1/admin/stats", { params: { query: { top: 100 } } })).catch(() => null);
    setKnown(stats?.projects.map((one) => one.project) ?? []);
  };
  return (
    <div class="field">
      <label for="project">{strings.app.project}</label>
      <input id="project" list="projects" placeholder={strings.app.allProjects} value={project ?? ""} onFocus={() => void find()}
        onChange={(event) => chooseProject(event.currentTarget.value.trim() || null)} />
      <datalist id="projects">{known.map((name) => <option key={name} value={name} />)}</datalist>
    </div>
  );
}

function SchemeSwitch() {
  const isDark = useStore(scheme) === "dark";
  return (
    <button class="quiet" onClick={switchScheme}>
      {isDark ? strings.app.scheme.light : strings.app.scheme.dark}
    </button>
  );
}

function Mark() {
  return (
    <svg viewBox="0 0 20 20" aria-hidden="true" fill="none" stroke="currentColor" stroke-width="2" stroke-linecap="round">
      <path d="M3 4h14M3 10h9M3 16h5" />
    </svg>
  );
}

function Shortcuts({ onClose }: { onClose: () => void }) {
  const text = strings.shortcuts;
  const rows: [string, string][] = [["/", text.search], ["j", text.next], ["k", text.previous], ["Enter", text.open], ["?", text.help]];
  return (
    <Dialog title={text.title} onClose={onClose}>
      <dl class="pairs">
        {rows.map(([key, meaning]) => [
          <dt key={key}><kbd>{key}</kbd></dt>,
          <dd key={`${key} meaning`}>{meaning}</dd>,
        ])}
      </dl>
      <div class="actions">
        <button class="primary" onClick={onClose}>{strings.app.close}</button>
      </div>
    </Dialog>
  );
}
