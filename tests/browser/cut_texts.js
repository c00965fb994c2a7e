// Labels and names that are wider than their box, tables and a page that scroll sideways, drawings whose text leaves
// them, and a tab of the page that is shown but out of sight.
() => {
  const found = [];
  const width = document.documentElement.scrollWidth;
  if (width > innerWidth) found.push(`the page has ${width} px`);
  for (const one of document.querySelectorAll("#view :is(dt, label, button, h1, h2, h3, th, .gauge .value, .mark, .table)")) {
    if (one.matches(".visually-hidden")) continue;
    const isBlock = one.offsetParent && getComputedStyle(one).display !== "inline";
    if (isBlock && one.scrollWidth > one.clientWidth + 1) found.push(one.textContent.slice(0, 40));
  }
  for (const text of document.querySelectorAll("svg.chart text")) {
    const [outer, inner] = [text.ownerSVGElement.getBoundingClientRect(), text.getBoundingClientRect()];
    const isCut = inner.left < outer.left - 1 || inner.right > outer.right + 1;
    if (inner.width && isCut) found.push(`chart: ${text.textContent}`);
  }
  const tab = document.querySelector(".bar nav a[aria-current]")?.getBoundingClientRect();
  if (tab && (tab.left < 0 || tab.right > innerWidth + 1)) found.push(`the tab is at ${tab.left} to ${tab.right}`);
  return found;
}
