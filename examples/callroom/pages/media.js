// Stand-ins for camera and microphone, and what plays sound. A real camera would draw a <video> on the same canvas.

export const FPS = 15;
export const RATE = 16_000; // samples in a second
const CHUNK = 0.1; // seconds of sound in a message
const TUNE = [0, 4, 7, 12, 7, 4]; // semitones, two notes a second
const AHEAD = 0.15; // seconds of sound that wait to be played, so that a late message leaves no hole

/** A hue for a name: the same in every window. */
export const hueOf = (name) => ([...name].reduce((sum, letter) => sum * 31 + letter.codePointAt(0), 7) * 137) % 360;

/** Draws a person with that name, and gives every picture to `onFrame(taken, jpeg)`. */
export class Camera {
  #canvas;
  #name;
  #clock;
  #onFrame;
  #number = 0;
  #busy = false;
  on = true;

  constructor(canvas, name, clock, onFrame) {
    [this.#canvas, this.#name, this.#clock, this.#onFrame] = [canvas, name, clock, onFrame];
    setInterval(() => this.#picture(), 1_000 / FPS);
  }

  #picture() {
    const taken = this.#clock();
    draw(this.#canvas, this.#name, this.on ? ++this.#number : 0, taken);
    if (this.#busy || !this.on) return;
    this.#busy = true;
    this.#canvas.toBlob((jpeg) => {
      this.#busy = false;
      this.#onFrame(taken, jpeg);
    }, "image/jpeg", 0.8);
  }
}

function draw(canvas, name, number, taken) {
  const pen = canvas.getContext("2d");
  const { width, height } = canvas;
  const hue = hueOf(name);
  const t = taken / 1_000;
  const sway = Math.sin(t * 1.6) * 18;
  const nod = Math.sin(t * 3.1) * 6;
  const wall = pen.createLinearGradient(0, 0, width, height);
  wall.addColorStop(0, `hsl(${hue} 45% 26%)`);
  wall.addColorStop(1, `hsl(${(hue + 50) % 360} 50% 14%)`);
  pen.fillStyle = wall;
  pen.fillRect(0, 0, width, height);
  if (!number) return; // the camera is off
  pen.fillStyle = `hsl(${(hue + 30) % 360} 60% 60% / 0.16)`;
  for (let i = 0; i < 6; i++) {
    pen.beginPath();
    pen.arc(((i * 97 + t * (14 + i * 5)) % (width + 120)) - 60, 60 + ((i * 71) % 200), 26 + i * 7, 0, 7);
    pen.fill();
  }
  const [x, y] = [width / 2 + sway, height * 0.46 + nod];
  pen.fillStyle = `hsl(${hue} 60% 48%)`; // shoulders
  pen.beginPath();
  pen.ellipse(width / 2 + sway * 0.4, height * 1.06, 128, 120, 0, 0, 7);
  pen.fill();
  pen.fillStyle = "#f2c9a5"; // head
  pen.beginPath();
  pen.ellipse(x, y, 66, 80, sway / 200, 0, 7);
  pen.fill();
  pen.fillStyle = `hsl(${(hue + 200) % 360} 40% 22%)`; // hair
  pen.beginPath();
  pen.ellipse(x, y - 40, 69, 50, sway / 200, Math.PI, 0);
  pen.fill();
  const blink = t % 3 < 0.15 ? 1 : 8;
  pen.fillStyle = "#26190f";
  for (const side of [-24, 24]) {
    pen.beginPath();
    pen.ellipse(x + side + sway / 6, y - 4, 7, blink, 0, 0, 7);
    pen.fill();
  }
  pen.fillStyle = "#8d3b32"; // mouth, talking
  pen.beginPath();
  pen.ellipse(x + sway / 6, y + 36, 18, 3 + 8 * Math.abs(Math.sin(t * 6)), 0, 0, 7);
  pen.fill();
  pen.fillStyle = "#ffffffd0";
  pen.font = "600 15px ui-monospace, monospace";
  pen.fillText(`${new Date(taken).toISOString().slice(11, 23)}  #${number}`, 14, 26);
}

/** A tune, each person's in another key: every 100 ms one message of samples, 16 bits each. */
export class Microphone {
  #base;
  #clock;
  #onSamples;
  #at = 0; // samples so far
  on = true;

  constructor(name, clock, onSamples) {
    [this.#base, this.#clock, this.#onSamples] = [196 * 2 ** ((hueOf(name) % 12) / 12), clock, onSamples];
    setInterval(() => this.#chunk(), CHUNK * 1_000);
  }

  #chunk() {
    if (!this.on) return;
    const samples = new Int16Array(RATE * CHUNK);
    for (let i = 0; i < samples.length; i++, this.#at++) {
      const t = this.#at / RATE;
      const note = this.#base * 2 ** (TUNE[Math.floor(t * 2) % TUNE.length] / 12);
      samples[i] = 9_000 * Math.exp(-4 * (t % 0.5)) * Math.sin(2 * Math.PI * note * t);
    }
    this.#onSamples(this.#clock(), samples);
  }
}

/** How loud a message is, from 0 to 1. */
export const levelOf = (samples) =>
  Math.min(1, (4 * Math.sqrt(samples.reduce((sum, one) => sum + one * one, 0) / (samples.length || 1))) / 32_768);

/** Plays messages of one person one behind the other. */
export class Player {
  #context;
  #next = 0;

  constructor(context) {
    this.#context = context;
  }

  play(samples) {
    const buffer = this.#context.createBuffer(1, samples.length, RATE);
    buffer.copyToChannel(Float32Array.from(samples, (one) => one / 32_768), 0);
    const source = this.#context.createBufferSource();
    source.buffer = buffer;
    source.connect(this.#context.destination);
    const now = this.#context.currentTime;
    if (this.#next < now || this.#next > now + 4 * AHEAD) this.#next = now + AHEAD;
    source.start(this.#next);
    this.#next += buffer.duration;
  }
}
