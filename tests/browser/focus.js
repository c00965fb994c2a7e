// What has the focus, as a screen reader would call it, and whether a reader sees that it has.
() => {
  const node = document.activeElement;
  if (!node || node === document.body) return null;
  const text = (id) => document.getElementById(id)?.textContent ?? "";
  const name = node.getAttribute("aria-label") || (node.getAttribute("aria-labelledby") ?? "").split(" ").map(text).join(" ").trim()
    || node.labels?.[0]?.textContent || node.textContent || node.getAttribute("placeholder") || "";
  const style = getComputedStyle(node);
  const ringed = style.outlineStyle !== "none" && parseFloat(style.outlineWidth) > 0 || style.boxShadow !== "none"
    || node.type === "datetime-local"; // the browser marks the part of it that has the focus
  const box = node.getBoundingClientRect();
  const seen = box.width > 0 && box.height > 0 && box.bottom > 0 && box.right > 0 && box.top < innerHeight && box.left < innerWidth;
  return {tag: node.localName, name: name.replace(/\s+/g, " ").trim(), ringed, seen};
}
