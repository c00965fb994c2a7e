// What both pages have: the connection, shown in words, and light or dark.

const WORDS = { connecting: "connecting …", open: "live", waiting: "reconnecting …", closed: "ended" };

/** Shows the state of a subscription; give it as `onState`. */
export function connection(element) {
  return (state, { error, retryIn } = {}) => {
    element.dataset.state = state;
    element.textContent = WORDS[state];
    element.title = error ? `${error.message}${retryIn ? `; again in ${Math.ceil(retryIn / 1000)} s` : ""}` : "";
  };
}

/** Light or dark: as the system has it until the user presses the button. */
export function themes(button) {
  const system = matchMedia("(prefers-color-scheme: dark)");
  const show = () => {
    const chosen = localStorage.getItem("theme");
    document.documentElement.style.colorScheme = chosen ?? "light dark";
    const dark = (chosen ?? (system.matches ? "dark" : "light")) === "dark";
    button.textContent = dark ? "☀ Light" : "☾ Dark";
    button.dataset.next = dark ? "light" : "dark";
  };
  button.addEventListener("click", () => {
    localStorage.setItem("theme", button.dataset.next);
    show();
  });
  system.addEventListener("change", show);
  show();
}

/** An element with text. Text is all that a value ever becomes. */
export function element(name, className, text = "") {
  const made = document.createElement(name);
  made.className = className;
  made.textContent = text;
  return made;
}

/** Calls `draw` once before the next picture, however often it is asked for. */
export function painter(draw) {
  let asked = false;
  return () => {
    if (asked) return;
    asked = true;
    // A tab in the background has no next picture; it draws a little later.
    const soon = document.hidden ? (call) => setTimeout(call, 200) : requestAnimationFrame;
    soon(() => {
      asked = false;
      draw();
    });
  };
}

export const clock = (time) => time.toLocaleTimeString([], { hour12: false });
