"use strict";
// The page of the lab: it shows the frames that the server sends, and throws its switches. All text goes in as textContent.

const span = 60000; // milliseconds that are plotted
const worlds = ["protected", "plain"];
const rowNames = ["hottest row", "second", "third", "race row", "stampede row"];
const logLines = 6;

let history = []; // of {at, protected, plain}
let marks = []; // when switches were thrown
let shown = { protected: "", plain: "" };

const all = (selector, from = document) => [...from.querySelectorAll(selector)];
const make = (name, text = "", kind = "") => {
	const e = document.createElement(name);
	e.textContent = text;
	if (kind) e.className = kind;
	return e;
};
const thousands = (n) => Math.round(n).toLocaleString("en-US");

for (const world of all("[data-world]")) {
	world.append(document.getElementById("world").content.cloneNode(true));
}

// Switches.

async function post(name, order) {
	const answer = await fetch("/switch/" + name, {
		method: "POST",
		headers: { "Content-Type": "application/json" },
		body: JSON.stringify(order),
	});
	if (!answer.ok && answer.status !== 409) throw new Error(await answer.text());
}

// asked has the controls that were used, and how they are to stand, until the lab has done what was asked for. Frames from before do not undo it.
const asked = new Map();

function ask(control, name, order) {
	const wish = { on: order.on };
	asked.set(control, wish);
	post(name, order).catch(say).finally(() => {
		if (asked.get(control) === wish) asked.delete(control);
	});
}

const standing = (control, on) => asked.has(control) ? asked.get(control).on : on;

function say(error) {
	const status = document.getElementById("status");
	status.textContent = error.message;
	status.className = "lost";
}

for (const button of all("[data-do]")) {
	button.addEventListener("click", async () => {
		button.disabled = true;
		try {
			await post(button.dataset.do, {});
		} catch (error) {
			say(error);
		} finally {
			button.disabled = false;
		}
	});
}
for (const button of all("[data-toggle]")) {
	button.setAttribute("aria-pressed", "false");
	button.addEventListener("click", () => {
		const order = { on: button.getAttribute("aria-pressed") !== "true" };
		if (button.dataset.process) order.process = Number(button.dataset.process);
		press(button, order.on);
		ask(button, button.dataset.toggle, order);
	});
}
for (const box of all("[data-protection]")) {
	box.addEventListener("change", () => ask(box, "protection", { name: box.dataset.protection, on: box.checked }));
}
const reads = document.getElementById("reads"), writes = document.getElementById("writes");
for (const slider of [reads, writes]) {
	slider.addEventListener("input", () => { document.getElementById(slider.id + "-now").textContent = slider.value; });
	slider.addEventListener("change", () => post("traffic", { reads: Number(reads.value), writes: Number(writes.value) }).catch(say));
}

function press(button, on) {
	button.setAttribute("aria-pressed", String(on));
	button.textContent = on ? button.dataset.on : button.dataset.off;
}

function showState(state) {
	for (const button of all("[data-toggle]")) {
		const on = button.dataset.process ? state.cut[button.dataset.process - 1] : state[button.dataset.field];
		press(button, standing(button, on));
	}
	for (const box of all("[data-protection]")) box.checked = standing(box, state.protections[box.dataset.protection]);
	for (const slider of [reads, writes]) {
		if (document.activeElement === slider) continue;
		slider.value = state[slider.id];
		document.getElementById(slider.id + "-now").textContent = state[slider.id];
	}
}

// Worlds.

function showWorld(name, scene) {
	const root = document.querySelector(`[data-world=${name}]`);
	const tile = (key, text, bad) => {
		const e = root.querySelector(`[data-tile=${key}]`);
		e.textContent = text;
		if (bad !== undefined) e.parentElement.classList.toggle("bad", bad);
	};
	tile("reads", thousands(scene.reads));
	tile("loads", thousands(scene.loads), false);
	tile("errors", thousands(scene.errors), scene.errors > 0);
	tile("stale", thousands(scene.stale), scene.stale > 0);
	tile("oldest", scene.oldest_ms ? (scene.oldest_ms < 1000 ? scene.oldest_ms.toFixed(0) + " ms" : (scene.oldest_ms / 1000).toFixed(1) + " s") : "–");
	tile("overdue", thousands(scene.overdue), scene.overdue > 0);
	tile("pending", thousands(scene.pending), scene.pending > 0);

	const body = root.querySelector("tbody");
	body.replaceChildren(...scene.watched.map((row, i) => {
		const line = make("tr");
		const title = make("th", rowNames[i]);
		title.scope = "row";
		line.append(title);
		for (const cell of [...row.memory, row.redis]) {
			line.append(cell.v ? make("td", "v" + cell.v + (cell.stale ? " old" : ""), cell.stale ? "stale" : "") : make("td", "–", "none"));
		}
		line.append(make("td", "v" + row.database));
		return line;
	}));

	if (!scene.log.length) {
		root.querySelector(".log").replaceChildren(make("li", "This log shows what your switches do. Start with the stampede.", "open"));
		return;
	}
	const key = JSON.stringify(scene.log);
	if (key === shown[name]) return;
	shown[name] = key;
	root.querySelector(".log").replaceChildren(...scene.log.slice(-logLines).reverse().map((event) => {
		const line = make("li", "", event.done ? "" : "open");
		line.dataset.event = event.switch;
		line.append(make("time", clock(event.at)), event.text);
		return line;
	}));
	for (const event of scene.log) showResult(name, event);
	if (name === "protected") marks = scene.log.map((event) => event.at);
}

// showResult puts the last line of a switch beside it.
function showResult(world, event) {
	const card = document.querySelector(`[data-switch=${event.switch}]`);
	if (!card) return;
	let list = card.querySelector("dl");
	if (!list) {
		list = make("dl");
		for (const name of worlds) list.append(make("dt", name, name), make("dd", "", name));
		card.append(list);
	}
	list.querySelector("dd." + world).textContent = event.text;
}

function clock(ms) {
	const s = Math.floor(ms / 1000);
	return Math.floor(s / 60) + ":" + String(s % 60).padStart(2, "0");
}

// Plots: a line for each world, on one scale.

function draw(figure) {
	const field = figure.dataset.plot, unit = figure.dataset.unit;
	const canvas = figure.querySelector("canvas"), style = getComputedStyle(document.documentElement);
	const ratio = window.devicePixelRatio || 1, width = canvas.clientWidth, height = canvas.clientHeight;
	if (canvas.width !== Math.round(width * ratio) || canvas.height !== Math.round(height * ratio)) {
		canvas.width = Math.round(width * ratio);
		canvas.height = Math.round(height * ratio);
	}
	const c = canvas.getContext("2d");
	c.setTransform(ratio, 0, 0, ratio, 0, 0);
	c.clearRect(0, 0, width, height);
	const scale = field === "hits" ? 100 : 1;
	const last = history[history.length - 1];
	let most = field === "hits" ? 100 : 0;
	for (const p of history) for (const w of worlds) most = Math.max(most, p[w][field] * scale);
	most = field === "hits" ? 100 : nice(Math.max(most, { loads: 20, at_once: 4, p99_ms: 40 }[field] || 4));
	const left = 34, top = 6, bottom = height - 4;
	const x = (at) => width - (last.at - at) / span * (width - left);
	const y = (v) => bottom - v / most * (bottom - top);

	c.font = "10px " + style.getPropertyValue("font-family");
	c.textAlign = "right";
	c.textBaseline = "middle";
	c.lineWidth = 1;
	for (const part of [0, 0.5, 1]) {
		c.strokeStyle = style.getPropertyValue("--grid");
		c.beginPath();
		c.moveTo(left, Math.round(y(most * part)) + 0.5);
		c.lineTo(width, Math.round(y(most * part)) + 0.5);
		c.stroke();
		c.fillStyle = style.getPropertyValue("--soft");
		if (part !== 0.5) c.fillText(thousands(most * part), left - 5, part ? y(most) + 3 : y(0) - 3);
	}
	c.strokeStyle = style.getPropertyValue("--soft");
	c.setLineDash([2, 3]);
	for (const at of marks) {
		if (x(at) < left) continue;
		c.beginPath();
		c.moveTo(x(at), top);
		c.lineTo(x(at), bottom);
		c.stroke();
	}
	c.setLineDash([]);
	c.lineWidth = 1.8;
	c.lineJoin = "round";
	for (const w of [...worlds].reverse()) {
		c.strokeStyle = style.getPropertyValue("--" + w);
		c.beginPath();
		history.forEach((p, i) => {
			if (x(p.at) < left) return;
			c[i ? "lineTo" : "moveTo"](x(p.at), y(Math.max(0, p[w][field] * scale)));
		});
		c.stroke();
	}
	const now = figure.querySelector("figcaption span");
	now.className = "now";
	const values = worlds.map((w) => round(last[w][field] * scale) + unit);
	now.replaceChildren(...worlds.map((w, i) => make("span", values[i], w)));
	canvas.setAttribute("aria-label", `protected ${values[0]}, plain ${values[1]}`);
}

function nice(v) {
	const power = 10 ** Math.floor(Math.log10(v));
	return power * [1, 2, 4, 5, 10].find((n) => n * power >= v);
}

function round(v) {
	return v >= 100 || Number.isInteger(v) ? thousands(v) : v.toFixed(1);
}

// Frames.

const events = new EventSource("/events");
events.addEventListener("history", (e) => { history = JSON.parse(e.data) || []; });
events.addEventListener("frame", (e) => {
	const frame = JSON.parse(e.data);
	const status = document.getElementById("status");
	status.textContent = "running " + clock(frame.at);
	status.className = "";
	if (history.length && history[history.length - 1].at > frame.at) history = []; // the lab was started anew
	history.push({ at: frame.at, protected: frame.protected.now, plain: frame.plain.now });
	while (history.length && history[0].at < frame.at - span) history.shift();
	showState(frame.state);
	for (const name of worlds) showWorld(name, frame[name]);
	for (const figure of all("[data-plot]")) draw(figure);
});
events.addEventListener("error", () => {
	const status = document.getElementById("status");
	status.textContent = "the lab has ended";
	status.className = "lost";
});
