"use strict";
// Everything on the page stands without this script; it adds sorting, filtering and opening by link.
(() => {
  const tables = [...document.querySelectorAll("table#gemms, table.gemms")]; // one filter, each its order
  const rows = tables.flatMap((table) => [...table.tBodies[0].rows]);

  const key = (row, column) => {
    const cell = row.cells[column];
    const text = cell.dataset.v ?? cell.textContent.trim();
    if (!counts(cell)) return text;
    const value = parseFloat(text.replace(/,/g, "").replace(/^[^\d-]+/, ""));
    return Number.isNaN(value) ? "" : value;
  };
  const counts = (cell) => cell.dataset.v !== undefined || cell.classList.contains("num");
  const known = (value) => value !== "–" && value !== "";
  const every = document.getElementById("every"); // unchecked: only the largest rows are shown
  const showAll = () => { if (every) every.checked = true; };
  const sortBy = (table, column, head) => {
    showAll();
    const rows = [...table.tBodies[0].rows].sort((a, b) => first.get(a) - first.get(b));
    const numeric = rows.some((row) => counts(row.cells[column]));
    const was = head.getAttribute("aria-sort");
    const down = was ? was === "ascending" : numeric; // numbers start with the largest
    for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
    head.setAttribute("aria-sort", down ? "descending" : "ascending");
    const keyed = rows.map((row, at) => [key(row, column), at, row]);
    keyed.sort(([a, i], [b, j]) => {
      const gap = (numeric ? typeof b === "number" : known(b)) - (numeric ? typeof a === "number" : known(a));
      if (gap) return gap; // unknown values last, whichever way
      const order = numeric && typeof a === "number" ? a - b : String(a).localeCompare(String(b));
      return (down ? -order : order) || i - j;
    });
    table.tBodies[0].append(...keyed.map(([, , row]) => row));
  };
  const first = new Map(rows.map((row, at) => [row, at])); // the order without a script
  for (const table of tables) {
    [...table.tHead.rows[0].cells].forEach((head, column) => {
      const button = document.createElement("button");
      button.type = "button";
      button.append(...head.childNodes);
      button.addEventListener("click", () => sortBy(table, column, head));
      head.append(button);
    });
  }

  const input = document.getElementById("filter");
  const shown = document.getElementById("shown");
  const texts = rows.map((row) =>
    [row.textContent, row.querySelector(".shape").dataset.q || "", row.querySelector(".kernel")?.title || ""].join(" ").toLowerCase()
  );
  const filter = () => {
    const words = input.value.toLowerCase().split(/\s+/).filter(Boolean);
    if (words.length) showAll();
    let count = 0;
    rows.forEach((row, at) => {
      row.hidden = !words.every((word) => texts[at].includes(word));
      count += !row.hidden;
      const fold = words.length && !row.hidden && row.closest("details");
      if (fold) fold.open = true;
    });
    shown.value = words.length ? `${count} of ${rows.length} rows` : `${rows.length} rows`;
  };
  if (rows.length) {
    document.querySelector(".tools").hidden = false;
    input.addEventListener("input", filter);
    filter();
  }

  const sizes = new ResizeObserver((seen) => {
    for (const { target } of seen) target.previousElementSibling.hidden = target.scrollWidth <= target.clientWidth + 1;
  });
  for (const box of document.querySelectorAll(".scroll")) {
    const hint = document.createElement("p");
    Object.assign(hint, { className: "more", hidden: true, textContent: "More columns to the right →" });
    box.before(hint);
    sizes.observe(box);
  }

  let report;
  const time = (ms) => (ms >= 1 ? `${Number(ms.toPrecision(4))} ms` : `${Number((1000 * ms).toPrecision(4))} µs`);
  document.querySelectorAll(".curve").forEach((figure) => {
    report ||= JSON.parse(document.getElementById("report").textContent);
    const curve = report.explorer.curves.filter((one) => !one.why)[+figure.dataset.at];
    const known = curve.values.map((_, n) => n).filter((n) => curve.mid_ms[n] !== null);
    const svg = figure.querySelector("svg");
    const box = { left: +svg.dataset.left, right: +svg.dataset.right, top: +svg.dataset.top, bottom: +svg.dataset.bottom };
    const [first, last] = [curve.values[0], curve.values.at(-1)];
    const part = (n) => ("byPlace" in svg.dataset ? (n + 0.5) / curve.values.length : (curve.values[n] - first) / (last - first));
    const place = (n) => box.left + part(n) * (box.right - box.left);
    const pick = document.createElement("input");
    const said = document.createElement("output");
    Object.assign(pick, { type: "range", min: 0, max: known.length - 1, value: known.indexOf(curve.values.indexOf(curve.now)) });
    pick.setAttribute("aria-label", `Read the curve of ${curve.parameter}`);
    const line = document.createElementNS(svg.namespaceURI, "path");
    line.setAttribute("class", "at-read");
    const show = () => {
      const n = known[pick.value];
      const [value, low, mid, high] = [curve.values[n], curve.low_ms[n], curve.mid_ms[n], curve.high_ms[n]];
      const on = curve.alignment_bytes ? `, on ${curve.alignment_bytes[n]} bytes` : "";
      said.value = `${value}${on}: ${time(mid)}` + (value === curve.now ? ", now" : ` (${time(low)} to ${time(high)})`);
      pick.setAttribute("aria-valuetext", said.value);
      line.setAttribute("d", `M${place(n)} ${box.top}V${box.bottom}`);
    };
    pick.addEventListener("input", () => { line.isConnected || svg.append(line); show(); });
    show();
    svg.after(pick, said);
  });

  const reveal = () => {
    const target = document.getElementById(decodeURIComponent(location.hash.slice(1)));
    if (!target) return;
    if (target.hidden) { input.value = ""; filter(); }
    if (target.classList.contains("rest")) showAll();
    for (let fold = target.closest("details"); fold; fold = fold.parentElement.closest("details")) fold.open = true;
    target.scrollIntoView({ block: target.tagName === "TR" ? "center" : "nearest" });
  };
  addEventListener("hashchange", reveal);
  reveal();

  let closed = [];
  addEventListener("beforeprint", () => {
    closed = [...document.querySelectorAll("details:not([open])")];
    for (const fold of closed) fold.open = true;
  });
  addEventListener("afterprint", () => { for (const fold of closed) fold.open = false; });
})();
