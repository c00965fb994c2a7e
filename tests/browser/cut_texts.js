// Labels that are wider than their box, drawings whose text leaves them, and a page that scrolls sideways.
() => {
  const found = [];
  const width = document.documentElement.scrollWidth;
  if (width > innerWidth) found.push(`the page has ${width} px`);
  for (const one of document.querySelectorAll("#view :is(dt, label, button, h1, h2, h3, .gauge .value, .mark)")) {
    if (one.matches(".visually-hidden")) continue;
    const isBlock = one.offsetParent && getComputedStyle(one).display !== "inline";
    if (isBlock && one.scrollWidth > one.clientWidth + 1) found.push(one.textContent.slice(0, 40));
  }
  for (const text of document.querySelectorAll("svg.chart text")) {
    const [outer, inner] = [text.ownerSVGElement.getBoundingClientRect(), text.getBoundingClientRect()];
    const isCut = inner.left < outer.left - 1 || inner.right > outer.right + 1;
    if (inner.width && isCut) found.push(`chart: ${text.textContent}`);
  }
  return found;
}
