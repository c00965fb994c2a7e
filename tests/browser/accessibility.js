// What is wrong with the page as it is now, a sentence each: after the criteria of WCAG 2.2, level AA, as far as a
// script can tell.
() => {
  const faults = [];
  const all = (selector) => [...document.querySelectorAll(selector)];
  const shown = (node) => node.checkVisibility({visibilityProperty: true, opacityProperty: true});
  const called = (node) => `<${node.localName}${node.id ? " id=" + node.id : ""} class="${node.getAttribute("class") ?? ""}">`;
  const text = (id) => document.getElementById(id)?.textContent ?? "";

  if (!document.documentElement.lang) faults.push("the page has no language");
  if (!document.title) faults.push("the page has no title");
  for (const [selector, count] of [["main", 1], ["h1", 1]]) {
    const found = all(selector).filter(shown).length;
    if (found !== count) faults.push(`there are ${found} of ${selector}`);
  }
  const navs = all("nav").filter(shown);
  if (navs.length > 1) for (const nav of navs) if (!nav.ariaLabel && !nav.getAttribute("aria-labelledby")) faults.push("a nav without a name");

  const ids = all("[id]").map((node) => node.id);
  for (const id of new Set(ids)) if (ids.filter((one) => one === id).length > 1) faults.push(`the id ${id} is there twice`);
  for (const node of all("[aria-labelledby], [aria-describedby], [for]"))
    for (const name of ["aria-labelledby", "aria-describedby", "for"])
      for (const id of (node.getAttribute(name) ?? "").split(" ").filter(Boolean))
        if (!document.getElementById(id)) faults.push(`${called(node)} names ${id}, which is not there`);

  for (const node of all("a[href], button, input, select, textarea, summary, dialog, [role=button], [role=region], [role=img], [role=log]")) {
    if (!shown(node) || node.type === "hidden") continue;
    const name = node.getAttribute("aria-label") || (node.getAttribute("aria-labelledby") ?? "").split(" ").map(text).join("")
      || [...(node.labels ?? [])].map((one) => one.textContent).join("") || (node.matches("a, button, summary, [role=button]") ? node.textContent : "");
    if (!name.trim()) faults.push(`${called(node)} has no name`);
  }
  for (const node of all("img")) if (!node.hasAttribute("alt")) faults.push("a picture without words");
  for (const node of all("svg")) if (!node.closest("[aria-hidden=true]") && node.getAttribute("role") !== "img") faults.push(`${called(node)} is neither hidden nor told`);

  let before = 0;
  for (const node of all("h1, h2, h3, h4, h5").filter(shown)) {
    const level = Number(node.localName[1]);
    if (level > before + 1) faults.push(`after h${before} comes h${level}: ${node.textContent.slice(0, 30)}`);
    before = level;
  }
  for (const table of all("table")) {
    if (!table.caption) faults.push(`${called(table)} has no caption`);
    for (const head of table.querySelectorAll("thead th")) if (head.scope !== "col") faults.push("a head of a column without scope");
    for (const head of table.querySelectorAll("tbody th")) if (head.scope !== "row") faults.push("a head of a row without scope");
  }
  for (const node of all("[tabindex]")) if (node.tabIndex > 0) faults.push(`${called(node)} jumps the queue of Tab`);
  for (const node of all("[aria-hidden=true]")) if (node.querySelector("a[href], button, input, select, textarea, [tabindex='0']")) faults.push(`${called(node)} is hidden and takes the focus`);

  // -- contrast --------------------------------------------------------------------------------------------------
  const canvas = new OffscreenCanvas(1, 1).getContext("2d", {willReadFrequently: true});
  const colour = (css) => {  // whatever way it is written
    canvas.clearRect(0, 0, 1, 1);
    canvas.fillStyle = css;
    canvas.fillRect(0, 0, 1, 1);
    const [r, g, b, a] = canvas.getImageData(0, 0, 1, 1).data;
    return [r, g, b, a / 255];
  };
  const over = ([r, g, b, a], [R, G, B]) => [r * a + R * (1 - a), g * a + G * (1 - a), b * a + B * (1 - a), 1];
  const light = (rgb) => {
    const [r, g, b] = rgb.map((one) => one / 255).map((one) => (one <= 0.04045 ? one / 12.92 : ((one + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const ground = (node) => {
    const layers = [];
    for (let at = node; at; at = at.parentElement) layers.push(colour(getComputedStyle(at).backgroundColor));
    return layers.reverse().reduce((below, layer) => over(layer, below), matchMedia("(prefers-color-scheme: dark)").matches ? [18, 18, 18, 1] : [255, 255, 255, 1]);
  };
  const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  const told = new Set();
  while (walk.nextNode()) {
    const node = walk.currentNode.parentElement;
    if (!walk.currentNode.textContent.trim() || !node.checkVisibility({visibilityProperty: true, opacityProperty: true})) continue;
    if (node.closest(":disabled, script, style, noscript, .visually-hidden, .hidden, .skip, option, title")) continue;
    const style = getComputedStyle(node);
    const back = ground(node);
    const drawn = node.closest("svg") ? style.fill : style.color;
    const [one, two] = [light(over(colour(drawn), back)), light(back)].sort((a, b) => b - a);
    const ratio = (one + 0.05) / (two + 0.05);
    const large = parseFloat(style.fontSize) >= 24 || (parseFloat(style.fontSize) >= 18.66 && Number(style.fontWeight) >= 700);
    const fault = `contrast ${ratio.toFixed(2)} of ${called(node)} (${drawn})`;
    if (ratio < (large ? 3 : 4.5) - 0.005 && !told.has(fault)) { told.add(fault); faults.push(fault); }
  }
  return faults;
}
