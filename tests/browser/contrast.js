// Contrast of every piece of visible text against what is painted behind it, by WCAG 2.
(() => {
  const lum = ([r, g, b]) => [r, g, b].map(v => (v /= 255) <= .03928 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4)
    .reduce((s, v, i) => s + v * [.2126, .7152, .0722][i], 0);
  const rgb = text => { const n = text.match(/[\d.]+/g); return n && (n.length < 4 || +n[3] > 0) ? n.slice(0, 3).map(Number) : null; };
  const page = el => {
    for (let e = el; e; e = e.parentElement) { const c = rgb(getComputedStyle(e).backgroundColor); if (c) return c; }
    return [255, 255, 255];
  };
  const behind = el => {
    if (el.closest("svg")) {
      const rect = el.closest("g")?.querySelector("rect");
      const style = rect && getComputedStyle(rect);
      if (style && !style.fill.startsWith("url")) {
        const over = rgb(style.fill), under = page(rect), share = Number(style.fillOpacity);
        return over.map((v, i) => share * v + (1 - share) * under[i]);
      }
    }
    return page(el);
  };
  const bad = [];
  const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  let seen = 0;
  for (let node; node = walk.nextNode();) {
    const el = node.parentElement;
    if (!node.data.trim() || el.closest("script,style,title,.vh,.skip")) continue;
    if (!el.getClientRects().length || getComputedStyle(el).visibility === "hidden") continue;
    const style = getComputedStyle(el);
    const ink = rgb(el instanceof SVGElement ? style.fill : style.color), paper = behind(el);
    if (!ink) continue;
    const [a, b] = [lum(ink), lum(paper)].sort((x, y) => y - x);
    const ratio = (a + .05) / (b + .05);
    const large = parseFloat(style.fontSize) >= 24 || (parseFloat(style.fontSize) >= 18.66 && style.fontWeight >= 700);
    seen += 1;
    if (ratio < (large ? 3 : 4.5)) bad.push([node.data.trim().slice(0, 40), el.className.baseVal ?? el.className, ratio.toFixed(2)]);
  }
  return { bad, seen };
})()
