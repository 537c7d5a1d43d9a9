(() => {
  "use strict";
  const byId = (id) => document.getElementById(id);
  const root = document.documentElement;
  const data = JSON.parse(byId("trace").textContent);
  root.classList.add("scripted");

  // Light and dark.
  const theme = byId("theme");
  const system = matchMedia("(prefers-color-scheme: dark)");
  const kept = (value) => {
    try {
      if (value === undefined) return localStorage.getItem("tightfit-theme");
      localStorage.setItem("tightfit-theme", value);
    } catch { /* pages from a file may have no storage */ }
    return null;
  };
  const dark = () => (root.dataset.theme || (system.matches ? "dark" : "light")) === "dark";
  const paint = () => { theme.textContent = dark() ? "Light" : "Dark"; };
  const before = kept();
  if (before === "dark" || before === "light") root.dataset.theme = before;
  theme.hidden = false;
  theme.addEventListener("click", () => {
    root.dataset.theme = dark() ? "light" : "dark";
    kept(root.dataset.theme);
    paint();
  });
  system.addEventListener("change", paint);
  paint();

  // Words. The same as the command line's: 1023.96 KiB goes to the next unit a little earlier.
  const bytes = (size) => {
    const magnitude = Math.abs(size);
    for (const [factor, unit] of [[2 ** 30, "GiB"], [2 ** 20, "MiB"], [2 ** 10, "KiB"]]) {
      if (magnitude >= factor * 0.99995 && magnitude >= 1024) return `${(size / factor).toFixed(1)} ${unit}`;
    }
    return `${size} B`;
  };
  const seconds = (time, across) => {
    const digits = Math.max(0, Math.min(6, Math.ceil(-Math.log10(across || 1)) + 3));
    return `${time.toFixed(digits)} s`;
  };

  // Notes on what is pointed at, or focused. In a group, one element is in the tab order, and
  // arrows go to the others.
  const tip = byId("tip");
  const show = (element) => {
    tip.textContent = element.dataset.tip;
    tip.hidden = false;
    const box = element.getBoundingClientRect();
    const left = Math.min(Math.max(8, box.left + Math.min(box.width, 300) / 2 - tip.offsetWidth / 2), innerWidth - tip.offsetWidth - 8);
    const above = box.top - tip.offsetHeight - 8;
    tip.style.left = `${left}px`;
    tip.style.top = `${above > 4 ? above : box.bottom + 8}px`;
  };
  const hide = () => { tip.hidden = true; };
  const noted = (event) => event.target instanceof Element && event.target.closest("[data-tip]");
  document.addEventListener("pointerover", (event) => { const on = noted(event); if (on) show(on); else hide(); });
  document.addEventListener("focusin", (event) => { const on = noted(event); if (on) show(on); else hide(); });
  document.addEventListener("keydown", (event) => { if (event.key === "Escape") hide(); });
  addEventListener("scroll", hide, { passive: true });
  for (const group of document.querySelectorAll(".rove")) {
    const items = [...group.querySelectorAll("[data-tip]")];
    items.forEach((item, number) => {
      item.tabIndex = number ? -1 : 0;
      item.setAttribute("role", "img");
      item.setAttribute("aria-label", item.dataset.tip);
    });
    group.addEventListener("keydown", (event) => {
      const now = items.indexOf(document.activeElement);
      const to = { ArrowRight: now + 1, ArrowDown: now + 1, ArrowLeft: now - 1, ArrowUp: now - 1, Home: 0, End: items.length - 1 }[event.key];
      if (now < 0 || to === undefined || !items[to]) return;
      event.preventDefault();
      items[now].tabIndex = -1;
      items[to].tabIndex = 0;
      items[to].focus();
    });
  }

  // Which step is drawn.
  const pick = byId("pick");
  if (pick) {
    byId("pick-box").hidden = false;
    pick.addEventListener("change", () => {
      for (const step of document.querySelectorAll(".step")) step.classList.toggle("shown", step.dataset.step === pick.value);
    });
  }

  // On paper, everything is open.
  addEventListener("beforeprint", () => { for (const each of document.querySelectorAll("details")) each.open = true; });

  // Memory over time.
  const plot = byId("plot");
  if (!plot) return;
  const unpack = (packed) => {
    if (!packed) return null;
    let time = 0;
    const times = packed.t.map((step) => (time += step) / 1e6);
    return { times, low: packed.lo, high: packed.hi || packed.lo };
  };
  const allocated = unpack(data.curves.allocated);
  const reserved = unpack(data.curves.reserved);
  const others = unpack(data.curves.others);
  const lookTimes = data.looks.map((each) => each[0]);
  const markTimes = data.marks.map((each) => each[0]);
  let from = data.start;
  let to = data.stop;
  let now = null;

  const upTo = (times, time) => { // how many are at `time` or before
    let low = 0;
    let high = times.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (times[middle] <= time) low = middle + 1; else high = middle;
    }
    return low;
  };
  const between = (curve, start, stop) => { // what held before `start` included, unless a sample is right then
    let first = Math.max(0, upTo(curve.times, start) - 1);
    while (first > 0 && curve.times[first] === start && curve.times[first - 1] === start) first -= 1;
    const end = upTo(curve.times, stop);
    if (end <= first) return null;
    let low = Infinity;
    let high = -Infinity;
    for (let at = first; at < end; at += 1) {
      if (curve.low[at] < low) low = curve.low[at];
      if (curve.high[at] > high) high = curve.high[at];
    }
    return [low, high];
  };
  const outline = (curve, which, top) => {
    const count = Math.max(50, Math.min(1500, Math.round(plot.clientWidth * 1.5)));
    const step = (to - from) / count;
    let path = "";
    let last = null;
    for (let column = 0; column < count; column += 1) {
      const seen = between(curve, from + step * column, from + step * (column + 1));
      if (!seen) continue;
      const y = (1000 - 1000 * Math.min(1, seen[which] / top)).toFixed(1);
      const x = (1000 * column / count).toFixed(1);
      if (last === null) path += `M${x} ${y}`; else if (y !== last) path += `H${x}V${y}`;
      last = y;
    }
    return path && `${path}H1000`;
  };
  const area = (path) => path && `${path}V1000H${path.slice(1).split(" ", 1)[0]}Z`;
  const steps = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 21600];
  const ticks = () => {
    const wanted = (to - from) / Math.max(2, Math.floor(plot.clientWidth / 90));
    let step = steps.find((each) => each >= wanted) || 86400;
    let digits = 0;
    if (wanted <= 1) {
      const power = 10 ** Math.floor(Math.log10(wanted));
      step = power * [1, 2, 5, 10].find((each) => power * each >= wanted * 0.999);
      digits = Math.max(0, -Math.floor(Math.log10(step) + 1e-9));
    }
    const found = [];
    for (let number = Math.ceil(from / step - 1e-9); number * step <= to + 1e-9 && found.length < 100; number += 1) {
      found.push([number * step, `${(number * step).toFixed(digits)} s`]);
    }
    return found;
  };
  const percent = (time) => 100 * (time - from) / (to - from);
  const placedInTime = document.querySelectorAll("#chart [data-a]");

  const draw = () => {
    const high = outline(allocated, 1, data.top);
    byId("high-line").setAttribute("d", high);
    byId("high-area").setAttribute("d", area(high));
    byId("low-area").setAttribute("d", area(outline(allocated, 0, data.top)));
    if (reserved) byId("reserved-line").setAttribute("d", outline(reserved, 1, data.top));
    if (others) { const path = byId("others-area"); path.setAttribute("d", area(outline(others, 1, Number(path.dataset.top)))); }
    for (const each of placedInTime) {
      const start = Number(each.dataset.a);
      const stop = each.dataset.b === undefined ? null : Number(each.dataset.b);
      const left = percent(Math.max(start, from));
      const outside = start > to || (stop === null ? start < from : stop < from);
      each.hidden = outside;
      if (outside) continue;
      each.style.left = `${left}%`;
      if (stop !== null) each.style.width = `${percent(Math.min(stop, to)) - left}%`;
      else each.classList.toggle("left", left > 70);
    }
    byId("seconds").replaceChildren(...ticks().map(([time, words]) => {
      const label = document.createElement("span");
      label.textContent = words;
      label.style.left = `${percent(time)}%`;
      return label;
    }));
    if (now !== null) mark();
  };

  const mark = () => {
    const cursor = byId("cursor");
    cursor.hidden = now < from || now > to;
    cursor.style.left = `${percent(now)}%`;
  };
  const range = (seen) => {
    if (!seen) return "unknown";
    const [low, high] = seen.map(bytes);
    return low === high ? high : `${low} to ${high}`;
  };
  const during = (bands) => bands.filter((band) => band[0] <= now && now <= band[1]).slice(-1)[0];
  const list = (id, words) => byId(id).replaceChildren(...words.map((each) => {
    const item = document.createElement("li");
    item.textContent = each;
    return item;
  }));
  const whoHeld = (total) => {
    const held = new Map();
    for (const [time, name, amount] of data.holders.changes) {
      if (time > now) break;
      if (amount) held.set(name, amount); else held.delete(name);
    }
    const sorted = [...held].sort((one, other) => other[1] - one[1]);
    const weights = sorted.reduce((sum, each) => sum + each[1], 0);
    const words = sorted.slice(0, 4).map(([name, amount]) => `${data.holders.names[name]}: ${bytes(amount)}`);
    if (sorted.length > 4) words.push(`${sorted.length - 4} more blocks: ${bytes(sorted.slice(4).reduce((sum, each) => sum + each[1], 0))}`);
    const look = data.looks[upTo(lookTimes, now) - 1];
    if (look) {
      const named = look[1].reduce((sum, each) => sum + each[1], 0);
      const code = look[1].map(([by, amount]) => `${by}: ${bytes(amount)}`);
      if (look[2] > named) code.push(`other code: ${bytes(look[2] - named)}`);
      list("now-code", code.length ? code : ["nothing that was watched"]);
    }
    byId("code-box").hidden = !look;
    if (total === null) return words;
    const floor = floorNow();
    if (sorted.length) words.push(`activations and the rest: ${bytes(Math.max(0, total - weights))}`);
    else if (floor !== null) words.push(`held all through this call (weights, input): ${bytes(floor)}`, `come and gone within it (activations): ${bytes(Math.max(0, total - floor))}`);
    return words.length ? words : ["the trace does not say"];
  };
  const floorNow = () => {
    for (const each of document.querySelectorAll("#plot .floor")) {
      if (Number(each.dataset.a) <= now && now <= Number(each.dataset.b)) return Number(each.dataset.bytes);
    }
    return null;
  };
  const look = (time) => {
    now = Math.min(data.stop, Math.max(data.start, time));
    if (now < from || now > to) {
      const width = to - from;
      from = Math.max(data.start, Math.min(data.stop - width, now - width / 2));
      to = from + width;
      draw();
    }
    byId("readout").hidden = false;
    const half = (to - from) / Math.max(1, plot.clientWidth) / 2;
    const seen = between(allocated, now - half, now + half) || between(allocated, now, now);
    const taken = reserved && (between(reserved, now - half, now + half));
    const total = seen ? seen[1] : null;
    byId("now-time").textContent = seconds(now, to - from);
    byId("now-allocated").textContent = range(seen);
    byId("now-reserved").textContent = range(taken);
    const most = taken ? Math.max(taken[1], total || 0) : total;
    byId("now-left").textContent = data.budget && most !== null ? bytes(data.budget - most) : "unknown";
    byId("now-others").textContent = others ? range(between(others, now, now)) : "unknown";
    const stage = during(data.stages);
    const attempt = during(data.tries);
    const told = stage && !(attempt && attempt[2].startsWith(stage[2]));
    const doing = [told && stage[2], attempt && `${attempt[2]}${attempt[3] === "oom" ? " (this try fails)" : ""}`].filter(Boolean).join(", ") || (data.tries.length ? "between tries" : "the trace does not say");
    byId("now-doing").textContent = doing;
    list("now-who", whoHeld(total));
    const count = upTo(markTimes, now);
    list("now-before", data.marks.slice(Math.max(0, count - 4), count).reverse().map(([when, words]) => `${seconds(when, data.stop - data.start)}: ${words}`));
    plot.setAttribute("aria-valuenow", now.toFixed(3));
    plot.setAttribute("aria-valuetext", `${seconds(now, to - from)}: ${range(seen)} allocated, ${range(taken)} reserved; ${doing}`);
    mark();
  };

  const zoom = (factor, around) => {
    const width = Math.min(data.stop - data.start, Math.max((data.stop - data.start) / 1e5, 1e-6, (to - from) * factor));
    const part = (around - from) / (to - from);
    from = Math.max(data.start, Math.min(data.stop - width, around - width * part));
    to = from + width;
    draw();
  };
  const all = () => { from = data.start; to = data.stop; draw(); };
  const peak = () => {
    let best = 0;
    allocated.high.forEach((value, at) => { if (value > allocated.high[best]) best = at; });
    look(allocated.times[best]);
  };
  const failed = () => {
    const marks = [...document.querySelectorAll("#plot .refused")].map((each) => Number(each.dataset.a));
    const tries = data.tries.filter((band) => band[3] === "oom").map((band) => band[1]);
    const times = marks.length ? marks : tries;
    if (times.length) look(times.find((time) => now === null || time > now + 1e-9) ?? times[0]);
  };
  const along = (direction, many) => {
    const time = now === null ? from : now;
    const pixel = (to - from) / Math.max(1, plot.clientWidth);
    if (many > 1) return look(time + direction * pixel * many);
    const times = allocated.times;
    if (direction > 0) return look(times[upTo(times, time + pixel * 0.999)] ?? data.stop);
    return look(times[upTo(times, time - pixel * 0.999) - 1] ?? data.start);
  };
  const middle = () => (now !== null && now >= from && now <= to ? now : (from + to) / 2);
  const does = { in: () => zoom(0.5, middle()), out: () => zoom(2, middle()), all, peak, failed };
  byId("tools").hidden = false;
  byId("tools").addEventListener("click", (event) => { const what = event.target.dataset.do; if (what) does[what](); });
  plot.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const many = event.shiftKey ? 40 : 1;
    const act = {
      ArrowRight: () => along(1, many), ArrowUp: () => along(1, many), ArrowLeft: () => along(-1, many), ArrowDown: () => along(-1, many),
      PageDown: () => along(1, 40), PageUp: () => along(-1, 40), Home: () => look(from), End: () => look(to),
      "+": does.in, "=": does.in, "-": does.out, 0: all, p: peak, P: peak, f: failed, F: failed,
    }[event.key];
    if (!act) return;
    event.preventDefault();
    act();
  });
  const timeAt = (event) => {
    const box = plot.getBoundingClientRect();
    return from + (to - from) * Math.min(1, Math.max(0, (event.clientX - box.left) / box.width));
  };
  let grabbed = null;
  plot.addEventListener("pointerdown", (event) => {
    look(timeAt(event));
    if (event.pointerType === "mouse" && event.button === 0) {
      grabbed = timeAt(event);
      plot.setPointerCapture(event.pointerId);
    }
  });
  plot.addEventListener("pointermove", (event) => {
    look(timeAt(event));
    const selection = byId("selection");
    selection.hidden = grabbed === null || Math.abs(percent(now) - percent(grabbed)) < 1;
    if (selection.hidden) return;
    selection.style.left = `${percent(Math.min(grabbed, now))}%`;
    selection.style.width = `${Math.abs(percent(now) - percent(grabbed))}%`;
  });
  plot.addEventListener("pointerup", (event) => {
    const start = grabbed;
    grabbed = null;
    if (start === null || byId("selection").hidden) return;
    byId("selection").hidden = true;
    const stop = timeAt(event);
    [from, to] = [Math.min(start, stop), Math.max(start, stop)];
    draw();
  });
  plot.addEventListener("dblclick", all);
  plot.addEventListener("focus", () => { if (now === null) peak(); });
  new ResizeObserver(draw).observe(plot);
})();
