"use strict";
// The page's only script. What it computes is in the data: sums and products by number (`formulas`),
// of which it knows nothing. Names of programs are text and never keys of objects.
(() => {
const D = JSON.parse(document.getElementById("data").textContent);
const PASSES = D.programs.some(p => p.passes.length > 1) ? ["forward", "backward", "total"] : ["forward"];
const PASS_NAMES = new Map([["forward", "forward"], ["backward", "backward"], ["total", "both"]]);
const WORDS = new Map([["forward", "the forward pass"], ["backward", "the backward pass"], ["total", "both passes"]]);
const SINGLE = D.programs.length === 1;
const SUMS = new Map(D.sums);

// --- evaluation ---------------------------------------------------------------------------------

class Evaluation {
  constructor(values) {
    this.values = values;
    this.products = new Array(D.products.length);
    this.formulas = new Array(D.formulas.length);
  }
  factor(n) {
    return n >= 0 ? this.values[n] : this.atom(D.atoms[-1 - n]);
  }
  atom([kind, ...of]) {
    const values = of.map(n => this.product(n));
    if (kind === "floor") return Math.floor(values[0]);
    if (kind === "min") return Math.min(...values);
    return values.reduce((a, b) => a + b, 0);
  }
  product(n) {
    let value = this.products[n];
    if (value === undefined) {
      const row = D.products[n];
      value = row[0];
      for (let i = 1; i < row.length; i += 2) value *= this.factor(row[i]) ** row[i + 1];
      this.products[n] = value;
    }
    return value;
  }
  formula(n) {
    let value = this.formulas[n];
    if (value === undefined) {
      const [sums, most] = D.formulas[n];
      value = 0;
      for (const each of sums) value += this.product(each);
      for (const options of most) value += Math.max(...options.map(o => this.formula(o)));
      this.formulas[n] = value;
    }
    return value;
  }
}

function sizeOf(expr, values) {
  if (typeof expr === "number") return expr;
  if (expr[0] === "v") return values[expr[1]];
  const a = sizeOf(expr[1], values), b = sizeOf(expr[2], values);
  switch (expr[0]) {
    case "+": return a + b;
    case "-": return a - b;
    case "*": return a * b;
    case "/": return a / b;
    default: return a ** b;
  }
}

/** Give the way in which a program's mesh lies on the machine, or the message why it does not. */
function variantOf(program) {
  const mesh = D.meshes[program.mesh], sizes = state.meshes[program.mesh];
  let at = 0;
  mesh.stops.forEach((stops, i) => { at = at * stops.length + stops.indexOf(sizes[i]); });
  const kind = program.kinds[D.machines[state.machine].kind];
  const slot = D.layouts[kind.layout][at];
  return slot < 0 ? { message: D.messages[-1 - slot] } : { variant: program.variants[kind.variants[slot]] };
}

/** Give the value of every variable; `over` gives one dim another size. */
function valuesOf(program, variant, over) {
  const values = new Float64Array(D.variables.length).fill(NaN);
  for (const dim of D.dims) values[dim.variable] = state.dims.get(dim.name);
  if (over) values[over.dim.variable] = over.size;
  D.variables.forEach(([kind, mesh, name], i) => {
    if (kind === "axis" && mesh === program.mesh) {
      const axis = D.meshes[mesh].axes.findIndex(a => a.name === name);
      values[i] = state.meshes[mesh][axis];
    }
  });
  for (const [variable, value] of D.machines[state.machine].values[D.programs.indexOf(program)]) values[variable] = value;
  if (variant) for (const [variable, value] of variant.links) values[variable] = value;
  for (let i = 0; i < program.follow.length; i++) {
    for (const dim of program.follow) values[dim.variable] = sizeOf(dim.size, values);
  }
  return values;
}

function computed(program) {
  const { variant, message } = variantOf(program);
  const values = valuesOf(program, variant);
  const evaluation = new Evaluation(values);
  const memory = (variant ?? program).memory.map(([key, label, n, part]) => ({ key, label, n, part, value: evaluation.formula(n) }));
  const found = { program, variant, message, values, memory, passes: new Map() };
  if (!variant) return found;
  found.collectives = variant.collectives.map(([sent, seconds]) => ({
    sent: evaluation.formula(sent), sentText: text(sent), seconds: evaluation.formula(seconds), secondsText: text(seconds),
  }));
  const crossings = crossingsOf(program, variant);
  for (const pass of program.passes) {
    const totals = new Map(own(variant.totals, pass).map(([key, n]) => [key, { value: evaluation.formula(n), n }]));
    const groups = own(variant.groups, pass).map(([axes, sent, seconds]) => ({
      axes, sent: evaluation.formula(sent), seconds: evaluation.formula(seconds), n: seconds,
    }));
    const math = totals.get("t_math").value, comms = totals.get("t_comms").value;
    found.passes.set(pass, {
      totals, groups, condition: own(variant.conditions, pass), crossing: crossings.get(pass),
      bound: comms === 0 && D.formulas[totals.get("t_comms").n][0].length === 0 && D.formulas[totals.get("t_comms").n][1].length === 0
        ? true : Number.isNaN(math + comms) ? null : math > comms,
    });
  }
  found.missing = missing(found);
  return found;
}

const text = n => D.formulas[n][2];
const own = (object, key) => Object.hasOwn(object, key) ? object[key] : [];

/** List the figures that a formula of the times asks for and the chip does not have. */
function missing(found) {
  const names = new Set();
  const factor = n => {
    if (n < 0) D.atoms[-1 - n].slice(1).forEach(product);
    else if (Number.isNaN(found.values[n])) names.add(D.variables[n][0] === "links" ? `M_${D.variables[n][2]}` : D.variables[n].at(-1));
  };
  const product = n => { for (let i = 1; i < D.products[n].length; i += 2) factor(D.products[n][i]); };
  const formula = n => { D.formulas[n][0].forEach(product); D.formulas[n][1].flat().forEach(formula); };
  for (const pass of found.passes.values()) for (const key of ["t_math", "t_comms"]) formula(pass.totals.get(key).n);
  return [...names];
}

// --- the crossover ------------------------------------------------------------------------------

const LAST = 50; // sizes up to 2^50 are looked at

/** Give T_math - T_comms of each pass for a size of the dim drawn over; what is equal but for rounding is 0. */
function difference(program, variant, size) {
  const evaluation = new Evaluation(valuesOf(program, variant, { dim: overDim(), size }));
  return new Map(program.passes.map(pass => {
    const totals = new Map(own(variant.totals, pass));
    const math = evaluation.formula(totals.get("t_math")), comms = evaluation.formula(totals.get("t_comms"));
    return [pass, Math.abs(math - comms) <= 1e-12 * (math + comms) ? 0 : math - comms];
  }));
}

/** Find for each pass the first stretch of sizes from 1 on where it is compute-bound, as [low, high]. */
function crossingsOf(program, variant) {
  const result = new Map();
  if (!overDim()) return result;
  const steps = [];
  for (let power = 0; power <= LAST; power++) steps.push(difference(program, variant, 2 ** power));
  for (const pass of program.passes) {
    const signs = steps.map(step => step.get(pass));
    if (signs.some(Number.isNaN)) continue;
    const crossings = [];
    for (let power = 0; power < LAST; power++) {
      if (signs[power] > 0 === signs[power + 1] > 0) continue;
      let low = power, high = power + 1;
      for (let i = 0; i < 52; i++) {
        const middle = (low + high) / 2;
        if (difference(program, variant, 2 ** middle).get(pass) > 0 === signs[power] > 0) low = middle;
        else high = middle;
      }
      crossings.push(2 ** high);
    }
    const start = signs[0] > 0;
    result.set(pass, {
      low: start ? null : crossings[0] ?? null,
      high: start ? crossings[0] ?? null : crossings[1] ?? null,
      always: start && crossings.length === 0,
      never: !start && crossings.length === 0,
    });
  }
  return result;
}

// --- numbers for people ---------------------------------------------------------------------------

const LARGE = ["", "k", "M", "G", "T", "P", "E", "Z", "Y"], SMALL = ["", "m", "µ", "n", "p", "f"];

function digits(value, count = 4) {
  let shown = value.toPrecision(count);
  const [number, power] = shown.split("e");
  shown = number.includes(".") ? number.replace(/\.?0+$/, "") : number;
  return power ? `${shown}e${power[0]}${power.slice(1).padStart(2, "0")}` : shown;
}

/** Print a number with its unit, as the reports do: `33.55 MB`, `1.2 ms`, `0 B`. */
function si(value, unit, count = 4) {
  if (value === undefined || value === null || Number.isNaN(value)) return "—";
  if (!Number.isFinite(value)) return "beyond 1e300";
  if (!value) return `0 ${unit}`.trim();
  const small = unit === "s" && Math.abs(value) < 1;
  const prefixes = small ? SMALL : unit === "s" ? [""] : LARGE, step = small ? 0.001 : 1000;
  let index = 0;
  while (index + 1 < prefixes.length && (small ? Math.abs(value) < 0.99995 : Math.abs(value) >= 999.95)) {
    value /= step;
    index += 1;
  }
  return `${digits(value, count)}\u00a0${prefixes[index]}${unit}`.trim();
}

/** Print a size as the notation has it: `131_072`. */
function whole(value) {
  if (value >= 1e15) return digits(value);
  const shown = Number.isInteger(value) ? String(value) : String(Number(value.toPrecision(6)));
  const [front, back] = shown.split(".");
  const grouped = front.replace(/\B(?=(\d{3})+$)/g, "_");
  return back ? `${grouped}.${back}` : grouped;
}

/** Print a size that need not be whole, in four digits at least: `81_600`. */
const about = value => value < 1000 ? digits(value) : whole(Math.round(value));

function binary(value) {
  for (const [unit, size] of [["Gi", 2 ** 30], ["Mi", 2 ** 20], ["Ki", 2 ** 10]]) {
    if (value >= size && value % size === 0 && value / size < 1024) return `${value / size}${unit}`;
  }
  return "";
}

const SCALES = new Map([["", 1], ["k", 1e3], ["K", 1e3], ["M", 1e6], ["G", 1e9], ["T", 1e12], ["Ki", 2 ** 10], ["Mi", 2 ** 20], ["Gi", 2 ** 30], ["Ti", 2 ** 40]]);

/** Read a size in the notation: `48_000`, `3M`, `32Ki`, `4e6`; null for anything else. */
function readSize(typed) {
  const match = /^(\d[\d_]*(?:\.\d*)?)(?:[eE](\d{1,2}))?(Ki|Mi|Gi|Ti|[kKMGT])?$/.exec(typed.trim().replace(/[\s\u202f,]/g, ""));
  if (!match) return null;
  const value = Number(match[1].replaceAll("_", "")) * 10 ** Number(match[2] ?? 0) * SCALES.get(match[3] ?? "");
  return Number.isInteger(value) && value >= 1 && value <= 2 ** LAST ? value : null;
}

// --- the state, and the address that keeps it -----------------------------------------------------

function initial() {
  const batch = D.dims.find(dim => dim.batch) ?? D.dims[0];
  return {
    dims: new Map(D.dims.map(dim => [dim.name, dim.size])),
    meshes: D.meshes.map(mesh => [...mesh.first]),
    machine: 0,
    pass: PASSES.at(-1),
    program: 0,
    over: batch ? batch.name : null,
    locked: lockable() && new Set(D.meshes.map(mesh => product(mesh.first))).size === 1,
  };
}

const product = sizes => sizes.reduce((a, b) => a * b, 1);
const lockable = () => D.meshes.length > 1 || D.meshes.some(mesh => mesh.axes.length > 1);
const overDim = () => D.dims.find(dim => dim.name === state.over);
let state = initial();

function address() {
  const part = (key, value) => `${encodeURIComponent(key)}=${encodeURIComponent(value)}`;
  const parts = [...state.dims].map(([name, size]) => part(name, size));
  // a dot is in no name of a program
  state.meshes.forEach((sizes, i) => { if (sizes.length) parts.push(`.mesh${i || ""}=${sizes.join(",")}`); });
  parts.push(part(".hardware", D.machines[state.machine].name), part(".pass", state.pass));
  if (!SINGLE) parts.push(part(".program", state.program));
  if (state.over !== null) parts.push(part(".over", state.over));
  if (lockable()) parts.push(`.chips=${state.locked ? "fixed" : "free"}`);
  return `#${parts.join("&")}`;
}

/** Read the state from the address; what makes no sense there is left as it is. */
function readAddress() {
  const next = initial();
  for (const part of location.hash.slice(1).split("&")) {
    let [key, value] = [part, ""];
    const at = part.indexOf("=");
    try {
      key = decodeURIComponent(at < 0 ? part : part.slice(0, at));
      value = at < 0 ? "" : decodeURIComponent(part.slice(at + 1));
    } catch { continue; }
    const mesh = /^\.mesh(\d*)$/.exec(key);
    if (mesh) {
      const index = Number(mesh[1] || 0), sizes = value.split(",").map(Number);
      const stops = D.meshes[index]?.stops;
      if (stops && sizes.length === stops.length && sizes.every((n, i) => stops[i].includes(n))) next.meshes[index] = sizes;
    } else if (key === ".hardware") {
      const index = D.machines.findIndex(machine => machine.name === value);
      if (index >= 0) next.machine = index;
    } else if (key === ".pass") {
      if (PASSES.includes(value)) next.pass = value;
    } else if (key === ".program") {
      if (/^\d+$/.test(value) && Number(value) < D.programs.length) next.program = Number(value);
    } else if (key === ".over") {
      if (next.dims.has(value)) next.over = value;
    } else if (key === ".chips") {
      next.locked = lockable() && value === "fixed";
    } else if (next.dims.has(key)) {
      const size = readSize(value);
      if (size !== null) next.dims.set(key, size);
    }
  }
  if (next.locked && new Set(next.meshes.map(product)).size > 1) next.locked = false;
  return next;
}

// --- the mesh -------------------------------------------------------------------------------------

const common = (a, b) => { while (b) [a, b] = [b, a % b]; return a; };

/** Share `chips` out over the axes of a mesh, near the sizes that they have; null where that can't be. */
function spread(mesh, chips, sizes, fixed = -1) {
  const { stops } = D.meshes[mesh], found = stops.map(() => 1);
  let left = chips;
  if (fixed >= 0) {
    if (chips % sizes[fixed]) return null;
    found[fixed] = sizes[fixed];
    left /= sizes[fixed];
  }
  const order = stops.map((_, i) => i).filter(i => i !== fixed);
  for (const i of order.toReversed()) {
    found[i] = stops[i].findLast(n => common(sizes[i], left) % n === 0);
    left /= found[i];
  }
  for (const i of fixed >= 0 ? order.toReversed() : order) {
    const size = stops[i].findLast(n => n % found[i] === 0 && left % (n / found[i]) === 0);
    left /= size / found[i];
    found[i] = size;
  }
  return left === 1 ? found : null;
}

const chips = () => product(state.meshes[D.programs[state.program].mesh]);

/** List the numbers of chips that every mesh can have. */
function chipStops() {
  const all = new Set(D.meshes.flatMap(mesh => mesh.stops.flat()));
  for (const n of [...all]) for (let size = n; size <= 2 ** 17; size *= 2) all.add(size);
  return [...all].sort((a, b) => a - b).filter(n => state.meshes.every((sizes, i) => spread(i, n, sizes)));
}

/** List the sizes that an axis can have: all, or with a fixed number of chips those that the others make up for. */
function axisStops(mesh, axis) {
  const stops = D.meshes[mesh].stops[axis];
  if (!state.locked) return stops;
  const total = product(state.meshes[mesh]);
  return stops.filter(n => spread(mesh, total, state.meshes[mesh].with(axis, n), axis));
}

function setAxis(mesh, axis, size) {
  const sizes = state.meshes[mesh].with(axis, size);
  state.meshes[mesh] = state.locked ? spread(mesh, product(state.meshes[mesh]), sizes, axis) ?? state.meshes[mesh] : sizes;
}

function setChips(count) {
  state.meshes = state.meshes.map((sizes, i) => spread(i, count, sizes) ?? sizes);
}

// --- making elements ------------------------------------------------------------------------------

function el(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name === "q") {
      if (!value) continue;
      made.dataset.q = value[0];
      made.dataset.v = String(value[1]);
    } else if (value === true) made.setAttribute(name, "");
    else if (value !== false && value !== null && value !== undefined) made.setAttribute(name, value);
  }
  made.append(...children.filter(child => child !== null && child !== undefined));
  return made;
}

const SVG = "http://www.w3.org/2000/svg";

function svg(tag, attributes = {}, ...children) {
  const made = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children);
  return made;
}

const $ = id => document.getElementById(id);
const code = shown => el("code", {}, shown);

function table(head, rows, options = {}) {
    const layout = options.stack || options.over; // laid out otherwise on phones: roles keep it a table
  const role = name => layout ? { role: name } : {};
  const body = el("tbody", role("rowgroup"));
  for (const row of rows) {
    const line = el("tr", { class: row.class, ...role("row"), "aria-current": row.current });
    if (row.wide) line.append(el("th", { colspan: head.length, scope: "rowgroup" }, row.wide));
    else row.cells.forEach((cell, i) => {
      const given = cell?.cell ? cell : { cell };
      const attributes = { q: given.q, class: given.class, "data-label": options.stack && i ? head[i] : null };
      line.append(i ? el("td", { ...attributes, ...role("cell") }, given.cell ?? "") : el("th", { ...attributes, scope: "row", ...role("rowheader") }, given.cell ?? ""));
    });
    body.append(line);
  }
  const top = el("tr", role("row"), ...head.map(shown => el("th", { scope: "col", ...role("columnheader") }, shown)));
  return el("table", { class: options.stack ? "stack" : options.over ? "over" : null, "aria-label": options.label, ...role("table") }, el("thead", role("rowgroup"), top), body);
}

// --- the controls ---------------------------------------------------------------------------------

const refreshers = [];
const dimStops = new Map();

function stopsOf(dim) {
  if (!dimStops.has(dim.name)) {
    const all = new Set([dim.size]);
    for (let size = 1; size <= Math.max(2 ** 24, dim.size * 64); size *= 2) {
      all.add(size);
      if (size > 1) all.add(size * 1.5);
    }
    dimStops.set(dim.name, [...all].sort((a, b) => a - b));
  }
  return dimStops.get(dim.name);
}

function nearest(stops, value) {
  let best = 0;
  stops.forEach((stop, i) => { if (Math.abs(Math.log(stop / value)) < Math.abs(Math.log(stops[best] / value))) best = i; });
  return best;
}

function range(id, label, stops, get, set, describe) {
  const input = el("input", { type: "range", id, min: 0, step: 1, "aria-label": label });
  input.addEventListener("input", () => { set(stops()[input.value]); changed(); });
  refreshers.push(() => {
    const own = stops(), index = nearest(own, get());
    input.max = own.length - 1;
    input.value = index;
    input.disabled = own.length < 2;
    input.hidden = input.disabled;
    input.setAttribute("aria-valuetext", describe(get()));
  });
  return input;
}

function dimControl(dim, i) {
  const id = `dim-${i}`;
  const field = el("input", { type: "text", id, class: "field", inputmode: "text", spellcheck: "false", "aria-describedby": `${id}-hint` });
  const hint = el("span", { class: "hint", id: `${id}-hint` });
  const get = () => state.dims.get(dim.name);
  const read = () => {
    const size = readSize(field.value);
    field.setAttribute("aria-invalid", size === null);
    if (size === null) {
      hint.textContent = "a whole number from 1 on, as in 4096, 48_000, 3M or 32Ki";
      hint.classList.add("warn");
      return;
    }
    state.dims.set(dim.name, size);
    changed(field);
  };
  field.addEventListener("input", read);
  field.addEventListener("blur", () => refresh());
  refreshers.push(active => {
    if (active === field) return;
    field.value = whole(get());
    field.removeAttribute("aria-invalid");
    hint.classList.remove("warn");
    hint.textContent = "";
  });
  const slider = range(`${id}-slider`, `${dim.name}, slider`, () => stopsOf(dim), get, size => state.dims.set(dim.name, size), whole);
  const note = el("span", { class: "soft" });
  refreshers.push(() => { note.textContent = [dim.batch ? "batch" : "", binary(get())].filter(Boolean).join(", "); });
  return el("div", { class: "control" }, el("label", { for: id }, code(dim.name), note), field, slider, hint);
}

function axisControl(mesh, axis) {
  const { name, network } = D.meshes[mesh].axes[axis];
  const id = `axis-${mesh}-${axis}`, get = () => state.meshes[mesh][axis];
  const shown = el("output", { for: id });
  refreshers.push(() => { shown.textContent = whole(get()); });
  const slider = range(id, `axis ${name}`, () => axisStops(mesh, axis), get, size => setAxis(mesh, axis, size), whole);
  const note = network === "dcn" ? el("span", { class: "soft" }, "data-centre network") : null;
  return el("div", { class: "control" }, el("label", { for: id }, code(name), note), shown, slider);
}

function radios(legend, name, options, get, set) {
  const box = el("div", { class: "choices" });
  options.forEach(([value, label], i) => {
    const input = el("input", { type: "radio", name, id: `${name}-${i}` });
    input.addEventListener("change", () => { set(value); changed(); });
    refreshers.push(() => { input.checked = get() === value; });
    box.append(el("label", { for: `${name}-${i}` }, input, label));
  });
  return el("fieldset", {}, el("legend", {}, legend), box);
}

function hardwareControl() {
  const select = el("select", { id: "hardware" });
  const groups = [[D.machines.slice(0, 1), "given"], [D.machines.slice(1).filter(m => m.torus), "on a torus"], [D.machines.slice(1).filter(m => !m.torus), "in nodes"]];
  for (const [listed, label] of groups) {
    if (!listed.length) continue;
    select.append(el("optgroup", { label }, ...listed.map(machine => el("option", { value: D.machines.indexOf(machine) }, machine.name))));
  }
  const caption = el("p", { class: "caption", id: "hardware-figures" });
  select.setAttribute("aria-describedby", "hardware-figures");
  select.addEventListener("change", () => { state.machine = Number(select.value); changed(); });
  refreshers.push(() => {
    select.value = state.machine;
    const machine = D.machines[state.machine];
    const units = new Map([["C", "FLOP/s"]]);
    const figures = machine.figures.map(([name, value]) => `${name} ${si(value, units.get(name) ?? "B/s")}`);
    caption.textContent = [machine.title, ...figures, machine.hbm === null ? null : `HBM ${si(machine.hbm, "B")}`].filter(Boolean).join(", ");
  });
  return el("fieldset", {}, el("legend", {}, el("label", { for: "hardware" }, "Hardware")), select, caption);
}

function meshControls() {
  const box = el("fieldset", {}, el("legend", {}, "Mesh"));
  const used = D.meshes.map((mesh, i) => i).filter(i => D.meshes[i].axes.length);
  if (lockable()) {
    const lock = el("input", { type: "checkbox", id: "lock" });
    lock.addEventListener("change", () => {
      state.locked = lock.checked;
      if (lock.checked) setChips(chips());
      if (new Set(state.meshes.map(product)).size > 1) state.locked = false;
      changed();
    });
    refreshers.push(() => { lock.checked = state.locked; });
    const shown = el("output", { for: "chips" });
    const slider = range("chips", "chips", chipStops, chips, setChips, whole);
    refreshers.push(() => {
      shown.textContent = state.locked || new Set(state.meshes.map(product)).size === 1 ? whole(chips()) : "different";
      slider.disabled = slider.hidden = !state.locked;
    });
    const row = el("div", { class: "control" }, el("label", { for: "chips" }, "chips"), shown, slider);
    box.append(row, el("label", { class: "check", for: "lock" }, lock, "keep their number, move the split"));
  }
  for (const mesh of used) {
    const names = D.programs.filter(p => p.mesh === mesh).map(p => p.label).join(", ");
    if (used.length > 1) box.append(el("p", { class: "sub" }, names));
    const group = el("div", used.length > 1 ? { role: "group", "aria-label": `mesh of ${names}` } : {});
    D.meshes[mesh].axes.forEach((_, axis) => group.append(axisControl(mesh, axis)));
    box.append(group);
  }
  return used.length ? box : null;
}

function sizesControls(title, dims) {
  return dims.length ? el("fieldset", {}, el("legend", {}, title), ...dims.map(dim => dimControl(dim, D.dims.indexOf(dim)))) : null;
}

function followControls() {
  const follow = D.programs.flatMap(program => program.follow.map(dim => [program, dim]));
  if (!follow.length) return null;
  const list = el("p", { class: "caption" });
  refreshers.push(() => {
    const said = follow.map(([program, dim]) => {
      const value = valuesOf(program, null)[dim.variable];
      return `${dim.name} = ${dim.text} = ${Number.isNaN(value) ? "—" : whole(value)}${SINGLE ? "" : ` (${program.label})`}`;
    });
    list.textContent = [...new Set(said)].join(", ");
  });
  return list;
}

function controls() {
  const form = $("controls");
  form.addEventListener("submit", event => event.preventDefault());
  const dims = [...D.dims].sort((a, b) => b.batch - a.batch);
  const reset = el("button", { type: "button" }, "Back to the start");
  reset.addEventListener("click", () => { state = initial(); changed(); });
  const over = el("select", { id: "over" }, ...D.dims.map(dim => el("option", { value: dim.name }, dim.name)));
  over.addEventListener("change", () => { state.over = over.value; changed(); });
  refreshers.push(() => { over.value = state.over; });
  const sizes = sizesControls("Sizes", dims);
  if (sizes) sizes.append(followControls() ?? "");
  form.append(...[
    SINGLE ? null : radios("Program", "program", D.programs.map((p, i) => [i, p.label]), () => state.program, value => { state.program = value; }),
    hardwareControl(),
    meshControls(),
    sizes,
    PASSES.length > 1 ? radios("Pass", "pass", PASSES.map(pass => [pass, PASS_NAMES.get(pass)]), () => state.pass, value => { state.pass = value; }) : null,
    D.dims.length > 1 ? el("fieldset", {}, el("legend", {}, el("label", { for: "over" }, "Picture and crossover over")), over) : null,
    reset,
  ].filter(Boolean));
}

// --- results --------------------------------------------------------------------------------------

const passOf = found => found.passes.get(found.passes.has(state.pass) ? state.pass : "forward");

function crossingText(crossing, short = false) {
  if (!crossing) return "—";
  const name = short ? "" : state.over;
  if (crossing.always) return "always";
  if (crossing.never) return "never";
  if (crossing.low !== null && crossing.high !== null) return `${about(crossing.low)} < ${state.over} < ${about(crossing.high)}`;
  return crossing.low !== null ? `${name} > ${about(crossing.low)}`.trim() : `${name} < ${about(crossing.high)}`.trim();
}

const crossingValue = crossing => crossing ? `${crossing.low ?? ""};${crossing.high ?? ""};${crossing.always ? "always" : crossing.never ? "never" : ""}` : "";
const yesNo = value => value === null || value === undefined ? "—" : value ? "yes" : "no";
const percent = part => part >= 9.995 ? `${digits(part, 3)} times` : `${digits(part * 100, 3)} %`;

function answer(found) {
  const pass = passOf(found), machine = D.machines[state.machine];
  const total = found.memory.find(part => part.key === "total")?.value;
  const item = (title, value, note, bad = false) => el("div", {}, el("dt", {}, title), el("dd", { class: `value${bad ? " warn" : ""}` }, value), el("dd", { class: `note${bad ? " warn" : ""}` }, ...[note].flat()));
  const get = key => pass ? pass.totals.get(key)?.value : NaN;
  const over = total > machine.hbm && machine.hbm !== null;
  const ratio = get("t_comms") / get("t_math");
  const label = SINGLE ? "" : `${found.program.label}: `;
  const list = el("dl", {},
    item(`${label}T_overlapped, ${PASS_NAMES.get(state.pass)}`, si(get("t_overlapped"), "s"), [`T_math ${si(get("t_math"), "s")}`, el("br"), `T_comms ${si(get("t_comms"), "s")}`]),
    item("Compute-bound", yesNo(pass?.bound), !Number.isFinite(ratio) ? "" : `T_comms is ${percent(ratio)} of T_math`),
    item("Compute-bound where", pass ? crossingText(pass.crossing) : "—", state.over === null || !pass?.crossing || !Number.isFinite(pass.crossing.low ?? pass.crossing.high ?? NaN) ? `whatever ${state.over ?? "the batch"} is` : `${state.over} is ${whole(state.dims.get(state.over))}`),
    item("Memory of a device", si(total, "B"), machine.hbm === null ? "no HBM size is known" : over ? `${si(total - machine.hbm, "B")} more than its ${si(machine.hbm, "B")}` : `${percent(total / machine.hbm)} of ${si(machine.hbm, "B")}`, over),
  );
  $("answer").replaceChildren(list);
}

function notices(all) {
  const listed = new Map();
  const add = (said, program, mild = false) => {
    const key = `${mild}${said}`;
    if (!listed.has(key)) listed.set(key, { said, mild, programs: [] });
    listed.get(key).programs.push(program.label);
  };
  const machine = D.machines[state.machine];
  for (const found of all) {
    const { program } = found;
    if (found.message) add(`The mesh does not fit: ${found.message}.`, program);
    if (found.missing?.length) add(`${machine.name} has no figure ${found.missing.join(", ")}: times that need it are left out.`, program);
    const sizes = state.meshes[program.mesh], axes = D.meshes[program.mesh].axes;
    for (const [dim, names] of program.splits) {
      const ways = product(names.map(name => sizes[axes.findIndex(axis => axis.name === name)]));
      const size = dim < 0 ? -dim : found.values[dim];
      if (size % ways) {
        const shown = dim < 0 ? whole(size) : `${D.variables[dim].at(-1)} = ${whole(size)}`;
        add(`${names.join("·")} = ${ways} does not divide ${shown}: such shards can't be even, and the numbers are those of even ones.`, program);
      }
    }
    const total = found.memory.find(part => part.key === "total")?.value;
    if (machine.hbm !== null && total > machine.hbm) add(`It does not fit: ${si(total, "B")} are needed, and ${machine.name} has ${si(machine.hbm, "B")}.`, program);
    const crowd = crowded(found, machine);
    if (crowd) add(crowd, program);
    for (const warning of [...program.warnings, ...machine.warnings[D.programs.indexOf(program)]]) add(`${warning}.`, program, true);
  }
  $("notices").replaceChildren(...[...listed.values()].sort((a, b) => a.mild - b.mild).map(({ said, mild, programs }) =>
    el("li", { class: mild ? "mild" : null }, SINGLE || programs.length === D.programs.length ? said : `${programs.join(", ")}: ${said}`)));
}

/** Say where the mesh takes more axes of the interconnect than the chip has, as reports do. */
function crowded(found, machine) {
  if (!found.variant || machine.ici_axes === null || (D.exact && !machine.torus)) return null;
  const spans = new Map();
  D.meshes[found.program.mesh].axes.forEach((axis, i) => {
    if (axis.network === "ici" && state.meshes[found.program.mesh][i] > 1) spans.set(axis.wire, found.variant.spans[i]);
  });
  const needed = [...spans.values()].reduce((a, b) => a + b, 0);
  if (needed <= machine.ici_axes) return null;
  const listed = [...spans].map(([name, span]) => span === 1 ? name : `${name} (${span})`).join(", ");
  return `The mesh axes ${listed} take ${needed} axes of the interconnect, and ${machine.name} has ${machine.ici_axes}: their times count links of its own for each, and can be too short.`;
}

const colorOf = i => `var(--s${i % 6})`;

function compare(all) {
  const section = $("compare");
  section.hidden = SINGLE;
  if (SINGLE) return;
  const machine = D.machines[state.machine];
  const head = ["Program", "T_math", "T_comms", "T_overlapped", "compute-bound where", "memory"];
  const rows = all.map((found, i) => {
    const pass = passOf(found), line = el("span", { class: "line" });
    line.style.borderTopColor = colorOf(i);
    const value = key => pass ? pass.totals.get(key).value : NaN;
    const cell = key => ({ cell: si(value(key), "s"), q: [`${i}.${state.pass}.${key}`, value(key)] });
    const total = found.memory.find(part => part.key === "total")?.value;
    return {
      current: i === state.program ? "true" : null,
      cells: [
        el("span", {}, line, found.program.label), cell("t_math"), cell("t_comms"), cell("t_overlapped"),
        { cell: pass ? crossingText(pass.crossing) : "—", q: [`${i}.${state.pass}.crossing`, crossingValue(pass?.crossing)] },
        { cell: si(total, "B"), class: machine.hbm !== null && total > machine.hbm ? "warn" : null, q: [`${i}.memory.total`, total] },
      ],
    };
  });
  section.querySelector(".rows").replaceChildren(
    table(head, rows, { stack: true, label: "Programs side by side" }),
    el("p", { class: "caption" }, `${WORDS.get(state.pass)[0].toUpperCase()}${WORDS.get(state.pass).slice(1)}. What follows shows ${D.programs[state.program].label} in full.`),
  );
}

const ORDER = ["t_math", "t_comms", "t_overlapped", "t_serial"];

/** Say how a total is shown: a time, bytes or FLOPs; null for what is none of them. */
function unitOf(key) {
  if (key.startsWith("t_")) return "s";
  if (key.endsWith("bytes")) return "B";
  return key === "flops" || key === "elementwise" ? "FLOP" : null;
}

const labelOf = key => Object.hasOwn(D.labels, key) ? D.labels[key] : key.startsWith("t_") ? `T${key.slice(1)}` : key;

function times(found) {
  const box = $("times"), of = SINGLE ? "" : `, ${found.program.label}`;
  $("times-title").textContent = `Times of one device${of}`;
  $("memory-title").textContent = `Memory of one device${of}`;
  if (!found.variant) {
    box.replaceChildren(el("p", {}, "None: the mesh does not fit."));
    return;
  }
  const passes = [...found.passes];
  const keys = [...passes[0][1].totals.keys()].filter(unitOf);
  keys.sort((a, b) => (ORDER.indexOf(a) + 1 || 9) - (ORDER.indexOf(b) + 1 || 9));
  const rows = [];
  for (const key of keys) {
    const unit = unitOf(key);
    if (key === "elementwise" && passes.every(([, pass]) => pass.totals.get(key).value === 0)) continue;
    rows.push({
      class: key === "t_overlapped" ? "main" : null,
      cells: [labelOf(key), ...passes.map(([name, pass]) => ({ cell: si(pass.totals.get(key).value, unit), q: [`${name}.${key}`, pass.totals.get(key).value] }))],
    });
    if (key !== "t_comms" && key !== "bytes") continue;
    const field = key === "bytes" ? "sent" : "seconds";
    const order = axes => D.meshes[found.program.mesh].axes.findIndex(axis => axis.name === axes.split(", ")[0]);
    const groups = [...new Set(passes.flatMap(([, pass]) => pass.groups.map(group => group.axes.join(", "))))].sort((a, b) => order(a) - order(b));
    for (const axes of groups) {
      if (groups.length < 2) break;
      rows.push({ class: "part", cells: [`over ${axes}`, ...passes.map(([name, pass]) => {
        const group = pass.groups.find(each => each.axes.join(", ") === axes);
        return { cell: group ? si(group[field], unit) : "", q: [`${name}.${key}.${axes}`, group ? group[field] : ""] };
      })] });
    }
  }
  rows.push({ cells: ["compute-bound", ...passes.map(([name, pass]) => ({ cell: yesNo(pass.bound), q: [`${name}.bound`, pass.bound] }))] });
  if (state.over !== null) {
    rows.push({ cells: [`where ${state.over}`, ...passes.map(([name, pass]) => ({ cell: crossingText(pass.crossing, true), q: [`${name}.crossing`, crossingValue(pass.crossing)] }))] });
  }
  box.replaceChildren(table(["", ...passes.map(([name]) => PASS_NAMES.get(name))], rows, { over: true, label: "Times of one device" }));
}

const PARTS = ["parameters", "gradients", "optimizer", "activations", "gathered_peak", "caches"];
const partColor = key => { const at = PARTS.indexOf(key); return `var(--m${at < 0 ? 5 : at})`; };

function memory(all) {
  const machine = D.machines[state.machine];
  const totals = all.map(found => found.memory.find(part => part.key === "total").value);
  const scale = Math.max(machine.hbm ?? 0, ...totals.filter(Number.isFinite));
  $("bars").replaceChildren(...all.map((found, i) => {
    const track = el("div", { class: "track", "aria-hidden": "true" });
    for (const part of found.memory) {
      if (!part.part || !(part.value > 0)) continue;
      const piece = el("span", {});
      piece.style.width = `${part.value / scale * 100}%`;
      piece.style.background = partColor(part.key);
      track.append(piece);
    }
    if (machine.hbm !== null && scale > machine.hbm) {
      const mark = el("i", {});
      mark.style.left = `${machine.hbm / scale * 100}%`;
      track.append(mark);
    }
    const over = machine.hbm !== null && totals[i] > machine.hbm;
    const fits = machine.hbm === null ? si(totals[i], "B") : `${si(totals[i], "B")} of ${si(machine.hbm, "B")}`;
    return el("div", { class: "bar" }, el("div", { class: "label" }, el("span", {}, SINGLE ? machine.name : found.program.label), el("span", { class: over ? "warn" : "soft" }, over ? `${fits}: does not fit` : fits)), track);
  }));
  const found = all[state.program];
  const rows = found.memory.filter(part => part.key !== "total" || found.memory.length > 1).map(part => {
    const swatch = el("span", { class: "swatch" });
    swatch.style.background = part.part ? partColor(part.key) : "transparent";
    return { class: part.key === "total" ? "main" : null, cells: [
      el("span", {}, swatch, part.label, part.key === "total" || text(part.n) === "0" || text(part.n).length > 600 ? "" : el("span", { class: "under" }, code(text(part.n)))),
      { cell: si(part.value, "B"), q: [`memory.${part.key}`, part.value] },
    ] };
  });
  $("memory").replaceChildren(table(["part", "bytes"], rows, { label: "Memory of one device" }));
}

function collectives(found) {
  const { program } = found;
  $("collectives-title").textContent = SINGLE ? "Collectives" : `Collectives of ${program.label}`;
  if (!program.collectives.length || !found.variant) {
    $("collectives").replaceChildren(el("p", { class: "soft" }, "None."));
    return;
  }
  const rows = [];
  let last = null;
  program.collectives.forEach((each, i) => {
    if (each.pass !== last) rows.push({ class: "group", wide: each.pass });
    last = each.pass;
    const priced = found.collectives[i];
    const name = `${each.op}_${each.axes.length > 1 ? `{${each.axes.join(",")}}` : each.axes[0]} ${each.tensor}`;
    rows.push({ cells: [
      el("span", {}, code(name), each.critical ? " *" : "", el("span", { class: "under" }, code(priced.sentText))),
      { cell: si(priced.sent, "B"), q: [`collective.${i}.bytes`, priced.sent] },
      { cell: si(priced.seconds, "s"), q: [`collective.${i}.time`, priced.seconds] },
    ] });
  });
  const star = program.collectives.some(each => each.critical) ? el("p", { class: "caption" }, "* on the critical path: computation waits for it.") : "";
  $("collectives").replaceChildren(table(["", "bytes", "time"], rows, { label: "Collectives" }), star);
}

function background(found) {
  const list = el("dl", { class: "formulas" });
  for (const [name, pass] of found.passes) {
    for (const [key, { n }] of pass.totals) {
      if (!unitOf(key) || (key === "elementwise" && text(n) === "0")) continue;
      list.append(el("dt", {}, `${labelOf(key)}, ${PASS_NAMES.get(name)}`), el("dd", {}, code(SUMS.get(key) ?? text(n))));
    }
    const [condition, solved] = pass.condition;
    list.append(el("dt", {}, `compute-bound where, ${PASS_NAMES.get(name)}`), el("dd", {}, code(condition), solved ? el("span", {}, ", that is ", code(solved)) : null));
  }
  $("formulas").replaceChildren(list);
  const said = [
    `Every number is of one device. Times assume peak rates${D.exact ? "" : " and no latency"}, so that T_overlapped is a lower bound.`,
    ...[...SUMS].map(([key, sum]) => `${labelOf(key)} is ${sum}.`),
    ...(D.open.length ? [`Nothing says what ${D.open.join(", ")} ${D.open.length > 1 ? "are" : "is"}: what the page starts with is a guess.`] : []),
    "The collectives are those that were chosen for the sizes in the program; other sizes change what they cost, not which they are.",
    ...(found.variant?.slice ? [`On the slice ${found.variant.slice}.`] : []),
    ...(found.variant?.notes ?? []).map(note => `${note[0].toUpperCase()}${note.slice(1)}.`),
  ];
  $("notes").replaceChildren(...said.map(note => el("li", {}, note)));
  const others = found.program.alternatives.map(([at, instead, when]) => el("li", {}, `At ${at}, when `, code(when), `: ${instead}.`));
  $("others").replaceChildren(...others);
  $("others").parentElement.hidden = !others.length;
  $("source").textContent = found.program.source;
}

// --- the picture ----------------------------------------------------------------------------------

/** Give the decades that the picture spans: two on each side of the size at first, and where it is now. */
function spanOf(dim, all) {
  const now = state.dims.get(dim.name);
  const near = all.map(found => passOf(found)?.crossing?.low ?? passOf(found)?.crossing?.high).filter(n => n && n < dim.size * 1e4 && n > dim.size / 1e4);
  const low = Math.min(dim.size / 100, now, ...near.map(n => n / 2)), high = Math.max(dim.size * 100, now, ...near.map(n => n * 2));
  return [Math.max(0, Math.floor(Math.log10(low))), Math.ceil(Math.log10(high) - 1e-9)];
}

function curvesOf(all, dim, sizes) {
  const curves = [];
  const add = (label, color, kind, of) => curves.push({ label, color, kind, points: sizes.map(of) });
  const evaluated = all.map(found => found.variant ? sizes.map(size => new Evaluation(valuesOf(found.program, found.variant, { dim, size }))) : null);
  const key = found => found.passes.has(state.pass) ? state.pass : "forward";
  const total = (found, name) => own(found.variant.totals, key(found)).find(([each]) => each === name)[1];
  const seen = new Map();
  all.forEach((found, i) => {
    const evaluations = evaluated[i];
    if (!evaluations) return;
    const math = evaluations.map(e => e.formula(total(found, "t_math")));
    if (SINGLE) {
      const groups = own(found.variant.groups, key(found));
      if (groups.length > 1) for (const [axes, , n] of groups) add(`over ${axes.join(", ")}`, "var(--comms)", "thin", (_, j) => evaluations[j].formula(n));
      add("T_comms", "var(--comms)", "strong", (_, j) => evaluations[j].formula(total(found, "t_comms")));
      add("T_math", "var(--math)", "strong", (_, j) => math[j]);
      return;
    }
    add(found.program.label, colorOf(i), i === state.program ? "strong" : "", (_, j) => evaluations[j].formula(total(found, "t_comms")));
    const same = math.map(value => value.toPrecision(9)).join();
    seen.set(same, [...(seen.get(same) ?? []), found.program.label]);
    if (seen.get(same).length === 1) curves.push({ label: same, color: "var(--ink)", kind: "", points: math, math: true });
  });
  for (const curve of curves) {
    if (curve.math) curve.label = seen.get(curve.label).length === all.length || seen.size === 1 ? "T_math" : `T_math ${seen.get(curve.label).join(", ")}`;
  }
  return curves;
}

function picture(all) {
  const dim = overDim();
  $("figure-title").textContent = dim ? `Times of ${WORDS.get(state.pass)} against ${dim.name}` : "Times";
  $("picture-table").hidden = !dim;
  if (!dim) {
    $("picture").replaceChildren(el("p", { class: "soft" }, "No dim of this program has a size that can change."));
    return;
  }
  const [first, last] = spanOf(dim, all), now = state.dims.get(dim.name);
  const sizes = [];
  for (let i = 0; i <= 96; i++) sizes.push(10 ** (first + (last - first) * i / 96));
  const curves = curvesOf(all, dim, sizes);
  const width = Math.max(280, $("picture").clientWidth || 640), height = Math.round(Math.min(400, Math.max(260, width * .55)));
  const values = curves.flatMap(curve => curve.points).filter(value => value > 0 && Number.isFinite(value));
  if (!values.length) {
    $("picture").replaceChildren(el("p", { class: "soft" }, "Nothing to draw: see the notices above."));
    $("caption").textContent = "";
    return;
  }
  const top = Math.ceil(Math.log10(Math.max(...values)) - 1e-9);
  const bottom = Math.max(Math.floor(Math.log10(Math.min(...values)) + 1e-9), top - 9);
  const labelWidth = Math.min(width * .3, 14 + Math.max(...curves.map(curve => curve.label.length * (curve.kind === "strong" ? 8 : 7))));
  const left = 52, right = width - labelWidth, ceiling = 26, floor = height - 26;
  const x = size => left + (Math.log10(size) - first) / (last - first) * (right - left);
  const y = value => floor - (Math.log10(value) - bottom) / Math.max(top - bottom, 1) * (floor - ceiling);
  const root = svg("svg", { viewBox: `0 0 ${width} ${height}`, height, role: "img", "aria-labelledby": "figure-title", "aria-describedby": "caption" });

  for (let power = bottom; power <= top; power++) {
    root.append(svg("line", { class: power === bottom ? "axis" : "grid", x1: left, x2: right, y1: y(10 ** power), y2: y(10 ** power) }));
    const every = Math.ceil((top - bottom + 1) / 8);
    if ((power - bottom) % every === 0) root.append(svg("text", { class: "tick", x: left - 8, y: y(10 ** power) + 4, "text-anchor": "end" }, si(10 ** power, "s")));
  }
  for (let power = first; power <= last; power++) {
    root.append(svg("line", { class: "axis", x1: x(10 ** power), x2: x(10 ** power), y1: floor, y2: floor + 4 }));
    root.append(svg("text", { class: "tick", x: x(10 ** power), y: floor + 18, "text-anchor": "middle" }, si(10 ** power, "").replace("\u00a0", "")));
  }
  const clip = value => Math.max(value, 10 ** bottom);
  for (const curve of curves) {
    const points = curve.points.map((value, i) => value > 0 && Number.isFinite(value) ? `${x(sizes[i]).toFixed(1)},${y(clip(value)).toFixed(1)}` : "").filter(Boolean);
    if (!points.length) continue;
    const line = svg("polyline", { class: `curve ${curve.kind}`, points: points.join(" ") });
    line.style.stroke = curve.color;
    root.append(line);
  }

  // where it is now, and where the times cross
  const at = x(now);
  root.append(svg("line", { class: "now", x1: at, x2: at, y1: ceiling - 4, y2: floor }));
  const anchor = at > right - 60 ? "end" : at < left + 60 ? "start" : "middle";
  root.append(svg("text", { class: "halo", x: at, y: ceiling - 10, "text-anchor": anchor }, `${dim.name} = ${whole(now)}`));
  const marks = [];
  all.forEach((found, i) => {
    const pass = passOf(found);
    for (const size of [pass?.crossing?.low, pass?.crossing?.high]) {
      if (!size || size < 10 ** first || size > 10 ** last) continue;
      const evaluation = new Evaluation(valuesOf(found.program, found.variant, { dim, size }));
      const name = found.passes.has(state.pass) ? state.pass : "forward";
      const value = evaluation.formula(own(found.variant.totals, name).find(([key]) => key === "t_math")[1]);
      if (!(value > 0) || value < 10 ** bottom) continue;
      marks.push({ size, value, color: SINGLE ? "var(--ink)" : colorOf(i), strong: SINGLE || i === state.program });
    }
  });
  for (const mark of marks) {
    if (mark.strong) {
      root.append(svg("line", { class: "cross", x1: x(mark.size), x2: x(mark.size), y1: y(mark.value), y2: floor }));
      const said = `equal at ${about(mark.size)}`, room = 7 * said.length;
      const beside = Math.abs(x(mark.size) - at) < room && x(mark.size) < at;
      const toLeft = x(mark.size) - left > room && (beside || right - x(mark.size) < room);
      root.append(svg("text", { class: "halo", x: x(mark.size) + (toLeft ? -6 : 6), y: floor - 8, "text-anchor": toLeft ? "end" : "start" }, said));
    }
    const dot = svg("circle", { class: "dot", cx: x(mark.size), cy: y(mark.value), r: 4.5 });
    dot.style.stroke = mark.color;
    root.append(dot);
  }

  // names at the ends of the lines, moved apart
  const ends = curves.map(curve => ({ curve, y: y(clip(curve.points.at(-1) || 10 ** bottom)) })).filter(end => Number.isFinite(end.y)).sort((a, b) => a.y - b.y);
  ends.forEach((end, i) => { if (i && end.y < ends[i - 1].y + 15) end.y = ends[i - 1].y + 15; });
  const spill = ends.length ? ends.at(-1).y - floor : 0;
  if (spill > 0) for (let i = ends.length - 1, limit = floor; i >= 0; i--, limit -= 15) ends[i].y = Math.min(ends[i].y, limit);
  const most = Math.floor((labelWidth - 7) / 7);
  for (const end of ends) {
    const name = end.curve.label.length > most ? `${end.curve.label.slice(0, most - 1)}…` : end.curve.label;
    const label = svg("text", { x: right + 7, y: end.y + 4, class: "name" }, name);
    label.style.fill = end.curve.color;
    if (end.curve.kind === "strong") label.style.fontWeight = 600;
    root.append(label);
  }
  $("picture").replaceChildren(root);
  $("caption").textContent = caption(all, dim);
  pictureTable(all, dim, first, last);
}

function caption(all, dim) {
  const found = all[state.program], pass = passOf(found);
  const said = SINGLE ? [] : ["Each line is the T_comms of a program."];
  if (pass?.crossing) {
    const subject = SINGLE ? "Computation" : `In ${found.program.label} computation`;
    const where = pass.crossing.always ? `longer than communication at every ${dim.name}`
      : pass.crossing.never ? `no longer than communication at any ${dim.name}`
      : `longer than communication where ${crossingText(pass.crossing)}`;
    said.push(`${subject} takes ${where}; now ${dim.name} = ${whole(state.dims.get(dim.name))}.`);
  }
  return said.join(" ");
}

function pictureTable(all, dim, first, last) {
  const sizes = [];
  for (let power = first; power <= last; power++) sizes.push(10 ** power);
  sizes.push(state.dims.get(dim.name));
  const sorted = [...new Set(sizes)].sort((a, b) => a - b);
  const curves = curvesOf(all, dim, sorted).filter(curve => curve.kind !== "thin");
  const head = [dim.name, ...curves.map(curve => SINGLE || curve.math ? curve.label : `T_comms ${curve.label}`)];
  const rows = sorted.map((size, i) => ({
    class: size === state.dims.get(dim.name) ? "main" : null,
    cells: [whole(size), ...curves.map((curve, j) => ({ cell: si(curve.points[i], "s"), q: [`picture.${j}.${size}`, curve.points[i]] }))],
  }));
  $("picture-table").lastElementChild.replaceChildren(table(head, rows, { label: "The picture as a table" }));
}

// --- all of it ------------------------------------------------------------------------------------

let speaking = 0;

function refresh(active) {
  for (const each of refreshers) each(active);
  const all = D.programs.map(computed), found = all[state.program];
  const model = `Model ${D.model}${D.overlap ? ", axes overlap" : ""}`;
  const mesh = D.meshes[found.program.mesh].axes.map((axis, i) => `${axis.name}=${state.meshes[found.program.mesh][i]}`).join(", ");
  $("setting").textContent = `${model}, strategy ${found.program.strategy}. ${D.machines[state.machine].name}${mesh ? `, ${mesh}` : ""}. Peak rates: a lower bound.`;
  answer(found);
  notices(all);
  compare(all);
  picture(all);
  times(found);
  memory(all);
  collectives(found);
  background(found);
  return found;
}

function speak(found) {
  clearTimeout(speaking);
  speaking = setTimeout(() => {
    const pass = passOf(found);
    $("spoken").textContent = pass
      ? `T_math ${si(pass.totals.get("t_math").value, "s")}, T_comms ${si(pass.totals.get("t_comms").value, "s")}, compute-bound: ${yesNo(pass.bound)}`
      : "The mesh does not fit.";
  }, 700);
}

function changed(active) {
  const found = refresh(active);
  try {
    history.replaceState(null, "", address());
  } catch { /* a browser that forbids it loses the link, nothing else */ }
  speak(found);
}

document.querySelector("main").hidden = false;
controls();
state = readAddress();
refresh();
window.addEventListener("hashchange", () => { state = readAddress(); refresh(); });
new ResizeObserver(() => picture(D.programs.map(computed))).observe($("picture"));
})();
