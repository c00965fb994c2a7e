// The room: who is in it, what they say, whether they are in a call, and how they look and sound. All of it comes from topics.

import { bytesOf, Bus } from "./bus.js";
import { Camera, FPS, hueOf, levelOf, Microphone, Player, RATE } from "./media.js";
import { Uplink } from "./uplink.js";

const $ = (id) => document.getElementById(id);
const room = decodeURIComponent(location.pathname.split("/").pop());
const people = new Map(); // name → its tile
const WORDS = { connecting: "connecting …", open: "live", waiting: "reconnecting …", closed: "refused" };
const LIVE = { policy: "drop_oldest", buffer: 2 * FPS }; // a slow page skips pictures; it does not fall behind
const RECENT = 5 * FPS; // frames that figures are made of
let me = "";
let uplink = null; // to the program behind the page
let bus = null; // from runnel
let call = { state: "idle", user_id: "" };
let speakers = null; // an AudioContext, once sound was asked for

function element(name, className, text = "") {
  const made = document.createElement(name);
  made.className = className;
  made.textContent = text;
  return made;
}

/** One person: picture, level, figures. */
class Tile {
  #latest = null; // the newest frame that is not shown yet: older ones are left out
  #busy = false;
  #arrived = []; // of the last frames: when, how long on the way, bytes
  chunks = 0;
  player = null;

  constructor(name) {
    this.name = name;
    this.figure = element("figure", "tile");
    this.figure.dataset.user = name;
    this.canvas = element("canvas", "");
    [this.canvas.width, this.canvas.height] = [480, 360];
    this.canvas.role = "img";
    this.canvas.ariaLabel = `Camera of ${name}`;
    this.initials = element("span", "initials", [...name].slice(0, 2).join("").toUpperCase());
    this.initials.style.setProperty("--hue", hueOf(name));
    this.meter = element("span", "meter");
    this.meter.role = "meter";
    this.meter.ariaLabel = `Level of ${name}`;
    this.level = 0;
    this.numbers = element("span", "numbers");
    const caption = element("figcaption", "");
    caption.append(element("b", "", name === me ? `${name} (you)` : name), this.meter, this.numbers);
    if (name !== me) {
      const again = element("button", "again", "Replay 10 s");
      again.type = "button";
      again.addEventListener("click", () => replay(name));
      caption.append(again);
    }
    this.figure.append(this.canvas, this.initials, caption);
  }

  /** How loud the person is, from 0 to 1. */
  set level(value) {
    this.meter.ariaValueNow = value.toFixed(2);
    this.meter.style.setProperty("--level", value);
  }

  frame(event) {
    const jpeg = bytesOf(event);
    const arrived = uplink.now();
    this.#arrived.push({ arrived, took: arrived - Number(event.headers.taken), bytes: jpeg.length });
    if (this.#arrived.length > RECENT) this.#arrived.shift();
    this.#latest = jpeg;
    if (!this.#busy) this.#show();
  }

  async #show() {
    this.#busy = true;
    while (this.#latest) {
      const jpeg = this.#latest;
      this.#latest = null;
      await paint(this.canvas, jpeg).catch(() => {}); // not a picture
      this.figure.dataset.live = "";
    }
    this.#busy = false;
  }

  sound(event) {
    const bytes = bytesOf(event);
    const samples = new Int16Array(bytes.buffer, 0, bytes.length >> 1);
    this.chunks++;
    this.level = levelOf(samples);
    if (speakers?.state === "running") (this.player ??= new Player(speakers)).play(samples);
  }

  /** Figures of the last frames, in words. */
  tell() {
    const now = uplink.now();
    const second = this.#arrived.filter((one) => one.arrived > now - 1_000);
    if (!second.length) this.rest();
    if (!second.length) return;
    const took = this.#arrived.map((one) => one.took).sort((a, b) => a - b);
    const at = (share) => Math.round(took[Math.min(took.length - 1, Math.floor(share * took.length))]);
    const kilobytes = Math.round(second.reduce((sum, one) => sum + one.bytes, 0) / second.length / 1_000);
    this.numbers.textContent = `${second.length} fps · ${kilobytes} kB · ${at(0.5)} ms (p95 ${at(0.95)} ms)`;
    this.numbers.title = `median and 95th percentile of the last ${took.length} frames; ${this.chunks} pieces of sound`;
    Object.assign(this.figure.dataset, { median: at(0.5), chunks: this.chunks });
  }

  /** Nothing comes: no call, or the camera is off. */
  rest() {
    delete this.figure.dataset.live;
    this.numbers.textContent = "";
    this.level = 0;
  }
}

async function paint(canvas, jpeg) {
  const picture = await createImageBitmap(new Blob([jpeg], { type: "image/jpeg" }));
  canvas.getContext("2d").drawImage(picture, 0, 0, canvas.width, canvas.height);
  picture.close();
}

// -- what topics say --------------------------------------------------------------------------------------------------

/** `present` are the names under which pages are subscribed to the chat: two tabs of a person are one. */
function onMembers(present) {
  for (const name of present) {
    if (people.has(name)) continue;
    const tile = name === me ? mine : new Tile(name);
    people.set(name, tile);
    $("tiles").append(tile.figure);
    if (name !== me) {
      bus.follow(`video.${room}.${name}`, LIVE, (event) => tile.frame(event));
      bus.follow(`audio.${room}.${name}`, LIVE, (event) => tile.sound(event));
    }
  }
  for (const [name, tile] of people) {
    if (name === me || present.has(name)) continue;
    tile.figure.remove();
    people.delete(name);
    for (const kind of ["video", "audio"]) bus.leave(`${kind}.${room}.${name}`);
  }
  const names = [...people.keys()].sort((a, b) => (b === me) - (a === me) || a.localeCompare(b));
  $("people").replaceChildren(
    ...names.map((name) => {
      const item = element("li", "", name === me ? `${name} (you)` : name);
      item.style.setProperty("--hue", hueOf(name));
      return item;
    }),
  );
  showCall();
}

function onCall({ payload }) {
  if (payload) call = JSON.parse(payload);
  showCall();
}

function onChat({ payload }) {
  const { id, user_id, body, at } = JSON.parse(payload);
  uplink.settle(id);
  const item = element("li", user_id === me ? "mine" : "");
  const when = element("time", "", new Date(at).toLocaleTimeString([], { hour: "2-digit", minute: "2-digit" }));
  item.append(element("b", "", user_id), when, element("p", "", body));
  const log = $("messages");
  const atEnd = log.scrollHeight - log.scrollTop - log.clientHeight < 40;
  log.append(item);
  while (log.childElementCount > 500) log.firstChild.remove();
  if (atEnd) log.scrollTop = log.scrollHeight;
}

// -- the call ---------------------------------------------------------------------------------------------------------

function showCall() {
  const { state, user_id } = call;
  const byMe = user_id === me;
  const others = people.size - people.has(me);
  const ringing = state === "ringing";
  const words = {
    idle: others ? "No call." : "You are alone here: open this page in a second window.",
    ringing: byMe ? "Ringing …" : `${user_id} is calling.`,
    active: "In a call.",
  };
  $("call").textContent = words[state];
  document.body.dataset.call = state;
  $("start").hidden = state === "active" || (ringing && byMe);
  $("start").textContent = ringing ? "Answer" : "Call";
  $("start").disabled = !others;
  $("decline").hidden = !ringing || byMe;
  $("end").hidden = !(state === "active" || (ringing && byMe));
}

const setCall = (state) => uplink.send({ kind: "call", state });
$("start").addEventListener("click", () => setCall(call.state === "ringing" ? "active" : "ringing"));
$("decline").addEventListener("click", () => setCall("idle"));
$("end").addEventListener("click", () => setCall("idle"));

// -- in and out -------------------------------------------------------------------------------------------------------

let mine = null;

function enter(name) {
  me = name;
  document.title = `${me} in ${room}`;
  $("entrance").hidden = true;
  $("inside").hidden = $("connection").hidden = false;
  const states = { page: "connecting", topics: "connecting" };
  const show = (part) => (state) => {
    states[part] = state;
    const worst = ["closed", "waiting", "connecting", "open"].find((one) => Object.values(states).includes(one));
    $("connection").dataset.state = worst;
    $("connection").textContent = WORDS[worst];
  };
  const address = (path) => new URL(path, location.href).href.replace(/^http/, "ws");
  uplink = new Uplink(address(`${encodeURIComponent(room)}/people/${encodeURIComponent(me)}`), show("page"));
  const inCall = () => call.state === "active";
  mine = new Tile(me);
  mine.figure.dataset.live = "";
  mine.tell = () => inCall() || (mine.level = 0); // one's own picture needs no call
  const camera = new Camera(mine.canvas, me, () => uplink.now(), (taken, jpeg) => inCall() && uplink.sendFrame("v", taken, jpeg));
  const microphone = new Microphone(me, () => uplink.now(), (taken, samples) => {
    if (inCall() && uplink.sendFrame("a", taken, samples)) mine.level = levelOf(samples);
  });
  toggle($("camera"), (on) => (camera.on = on));
  toggle($("microphone"), (on) => (microphone.on = on));
  toggle($("sound"), (on) => (on ? (speakers ??= new AudioContext({ sampleRate: RATE })).resume() : speakers?.suspend()));
  bus = new Bus(address("../bus/ws"), show("topics"));
  bus.follow(`call.${room}`, { from: "earliest" }, onCall);
  bus.follow(`chat.${room}`, { from: "earliest", presence: me }, onChat);
  bus.watch(`chat.${room}`, onMembers);
  setInterval(() => people.forEach((tile) => tile.tell()), 500);
  $("text").focus();
}

function toggle(button, act) {
  button.addEventListener("click", () => {
    const on = button.ariaPressed !== "true";
    button.ariaPressed = String(on);
    act(on);
  });
}

$("entrance").addEventListener("submit", (event) => {
  event.preventDefault();
  enter($("name").value.trim());
});
$("compose").addEventListener("submit", (event) => {
  event.preventDefault();
  const text = $("text").value.trim();
  if (text) uplink.sendSurely({ kind: "chat", text });
  $("text").value = "";
});

/** The last seconds of a person, from the table: the same frames, by SELECT. */
async function replay(name) {
  const dialog = $("replay");
  const [canvas, told] = [dialog.querySelector("canvas"), dialog.querySelector("p")];
  $("replay-title").textContent = `The last 10 seconds of ${name}`;
  told.textContent = "Reading …";
  dialog.showModal();
  const asked = performance.now();
  const answer = await fetch(`${encodeURIComponent(room)}/people/${encodeURIComponent(name)}/frames`);
  const frames = answer.ok ? await answer.json() : [];
  told.textContent = frames.length
    ? `${frames.length} frames that one SELECT found in video_frames, in ${Math.round(performance.now() - asked)} ms.`
    : "There are no frames from the last 10 seconds.";
  const began = performance.now();
  for (const { taken, jpeg } of frames) {
    const wait = taken - frames[0].taken - (performance.now() - began);
    if (wait > 0) await new Promise((resolve) => setTimeout(resolve, wait));
    if (!dialog.open) return;
    await paint(canvas, bytesOf({ payload: jpeg, encoding: "base64" }));
  }
}

/** Light or dark: as the system has it until the button is pressed. */
function themes(button) {
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

themes($("theme"));
$("room").textContent = room;
$("name").value = new URLSearchParams(location.search).get("name") ?? "";
if ($("name").value && $("name").checkValidity()) enter($("name").value);
else $("name").focus();
