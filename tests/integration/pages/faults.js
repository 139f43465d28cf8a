// Faults of a page as it is shown: what is cut off or wider than the window, too faint, without a text for those who do not see it.
(() => {
  const faults = [];
  const name = (e) => `<${e.tagName.toLowerCase()} ${e.getAttribute("class") || ""}> ${(e.textContent || "").trim().slice(0, 40)}`;
  const root = document.scrollingElement;
  if (root.scrollWidth > root.clientWidth) faults.push(`the page is ${root.scrollWidth} px wide in ${root.clientWidth}`);
  const scrolls = (e) => {
    for (; e; e = e.parentElement) if (/auto|scroll/.test(getComputedStyle(e).overflowX)) return true;
    return false;
  };
  const parse = (c) => (c.match(/[\d.]+/g) || [0, 0, 0, 0]).map(Number);
  const light = (c) => {
    const [r, g, b] = c.map((v) => ((v /= 255) <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const over = (top, below) => {
    const a = top.length > 3 ? top[3] : 1;
    return [0, 1, 2].map((i) => top[i] * a + below[i] * (1 - a));
  };
  const behind = (e) => {
    const layers = [];
    for (; e; e = e.parentElement) layers.push(parse(getComputedStyle(e).backgroundColor));
    return layers.reverse().reduce((below, top) => over(top, below), [255, 255, 255]);
  };
  const opacity = (e) => { let o = 1; for (; e; e = e.parentElement) o *= Number(getComputedStyle(e).opacity); return o; };
  for (const e of document.body.querySelectorAll("*")) {
    const box = e.getBoundingClientRect();
    if (!box.width || !box.height || e.closest("svg, script, style")) continue;
    if ((box.right > innerWidth + 1 || box.left < -1) && !scrolls(e.parentElement)) faults.push(`beyond the window: ${name(e)}`);
    const own = [...e.childNodes].some((n) => n.nodeType === 3 && n.textContent.trim());
    if (!own) continue;
    const style = getComputedStyle(e), below = behind(e);
    const colour = parse(style.color); colour[3] = (colour[3] ?? 1) * opacity(e);
    const [a, b] = [light(over(colour, below)), light(below)].sort((x, y) => y - x);
    const size = parseFloat(style.fontSize), large = size >= 24 || (size >= 18.66 && Number(style.fontWeight) >= 700);
    const ratio = (a + 0.05) / (b + 0.05);
    if (ratio < (large ? 3 : 4.5)) faults.push(`contrast ${ratio.toFixed(2)}: ${name(e)}`);
    // A word that is torn: a single character on a line of its own, or a column narrower than three letters.
    if (box.width < 2 * size && e.textContent.trim().length > 6) faults.push(`torn letter by letter: ${name(e)}`);
  }
  for (const e of document.querySelectorAll("img:not([alt]), svg[role=img]:not([aria-label]), svg:not([role]):not([aria-hidden])"))
    faults.push(`no text for those who do not see it: ${name(e)}`);
  return [...new Set(faults)];
})()
