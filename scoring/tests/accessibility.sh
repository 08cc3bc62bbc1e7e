#!/bin/bash
# Checks the HTML report and the ranking page in a headless Chromium at three widths (phone, tablet, desktop), in light and dark:
# axe-core finds nothing, nothing scrolls sideways but what may, the keyboard reaches everything and shows where it is, every
# drawing has a name and a description, nothing is said on the console.
#
#   scoring/tests/accessibility.sh CLUSTERMAX RESULTS [OUT]
#
# CLUSTERMAX is the built program, RESULTS a results folder, OUT gets pictures of whole pages and the report as PDF when given.
# Needs chromium, and axe-core: AXE names its axe.min.js, else npm installs it into a temporary folder. Nothing of it is shipped.
# Exit code: 0 nothing found, 1 something (each is printed), 3 a needed program is missing.
set -euo pipefail

[ $# -ge 2 ] || { echo "usage: accessibility.sh CLUSTERMAX RESULTS [OUT]" >&2; exit 2; }
program=$1 results=$2 out=${3-}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
[ -n "${AXE-}" ] && need=(chromium python3) || need=(chromium python3 npm)
for one in "${need[@]}"; do
  command -v "$one" > /dev/null || { echo "accessibility.sh: $one is not installed; install it and run again" >&2; exit 3; }
done
mkdir -p "$work/pages" "$work/peer"
if [ -z "${AXE-}" ]; then
  npm install --prefix "$work" --silent --no-audit --no-fund axe-core@4
  AXE=$work/node_modules/axe-core/axe.min.js
fi

# 1 is "measured and not rated": there is a report all the same.
"$program" score "$results" --out "$work/pages" > /dev/null || [ $? -eq 1 ]
sed 's/"run": "/"run": "peer-/' "$work/pages/score.json" > "$work/peer/score.json"
"$program" rank "$work/pages" "$work/peer" --html "$work/pages/rank.html" > /dev/null

# The page's own policy forbids every script, so the checker goes into a copy without that line.
cat > "$work/inject.py" <<'PY'
import re, sys
page, axe, out = sys.argv[1:]
text, policies = re.subn(r'<meta http-equiv="Content-Security-Policy"[^>]*>\n', "", open(page).read())
assert policies == 1, "the page has no policy"
script = r"""
const bad = [], say = (what, node) => bad.push(what + ": " + node.outerHTML.slice(0, 120));
const shown = node => node.checkVisibility();
document.querySelectorAll("details").forEach(one => { one.open = true; });
const wide = document.documentElement.scrollWidth, room = document.documentElement.clientWidth;
if (wide > room) bad.push("SIDEWAYS the page is " + wide + " wide, the window " + room);
for (const one of document.querySelectorAll(".scroll")) {
  // Numbers behind a plot and maps of many GPUs may scroll in their region, tables that are read may not on a phone or tablet.
  if (shown(one) && room <= 900 && one.scrollWidth > one.clientWidth + 1 && !one.querySelector(".t-data, .heat")) say("SIDEWAYS", one);
}
for (const one of document.querySelectorAll("text")) {
  if (!shown(one)) continue;
  const box = one.getBoundingClientRect(), frame = one.ownerSVGElement.getBoundingClientRect();
  if (box.left < frame.left - 1 || box.right > frame.right + 1 || box.bottom > frame.bottom + 2) say("CUT text", one);
}
for (const svg of document.querySelectorAll("svg.plot")) {
  if (!shown(svg)) continue;
  const boxes = [...svg.querySelectorAll("text")].map(one => [one, one.getBoundingClientRect()]).filter(one => one[1].width > 0);
  boxes.forEach(([one, a], at) => boxes.slice(at + 1).forEach(([other, b]) => {
    const x = Math.min(a.right, b.right) - Math.max(a.left, b.left), y = Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top);
    if (x > 2 && y > 4) say("OVERLAP of '" + one.textContent + "' with '" + other.textContent + "'", svg);
  }));
  const words = (svg.getAttribute("aria-labelledby") || "").split(" ").map(id => document.getElementById(id)?.textContent.trim());
  if (words.length !== 2 || !words.every(Boolean)) say("NAMELESS", svg);
}
const stops = [...document.querySelectorAll("a[href], summary, input, [tabindex]")].filter(shown);
if (!stops[0]?.matches(".skip")) say("ORDER the first stop is not the skip link", stops[0]);
if (stops.some(one => one.tabIndex > 0)) bad.push("ORDER a tabindex above 0");
const none = one => { const look = getComputedStyle(one); return look.outlineStyle === "none" || parseFloat(look.outlineWidth) < 2; };
// One of each kind: computing the style of thousands takes long.
const kinds = new Map(stops.map(one => [one.tagName + one.className, one]));
for (const one of kinds.values()) { one.focus({focusVisible: true}); if (document.activeElement !== one) say("FOCUS is not taken by", one); else if (none(one)) say("FOCUS is not seen on", one); }
for (const one of stops.filter(one => one.getAttribute("href")?.startsWith("#"))) {
  if (!document.getElementById(one.getAttribute("href").slice(1))) say("LINK to nothing", one);
}
document.activeElement.blur();
axe.run(document).then(found => {
  for (const one of found.violations) {
    bad.push(one.id + " (" + one.impact + "): " + one.help + ": " + one.nodes.slice(0, 5).map(node => node.target.join(" ")).join(" | "));
  }
  const result = document.createElement("pre");
  result.id = "axe-result";
  const head = found.passes.length + " rules passed, " + stops.length + " stops, page height " + document.documentElement.scrollHeight;
  result.textContent = head + "\n" + bad.slice(0, 40).map(row => "FOUND " + row + "\n").join("") + "END";
  document.body.replaceChildren(result);
});
"""
text = text.replace("</body>", "<script>" + open(axe).read() + "</script><script>" + script + "</script></body>")
open(out, "w").write(text)
PY

browser() {
  local profile
  profile=$(mktemp -d "$work/profile.XXXX")
  chromium --headless --no-sandbox --disable-gpu --hide-scrollbars --no-first-run --disable-background-networking \
    --disable-component-update --disable-sync --enable-logging=stderr --user-data-dir="$profile" "$@"
  rm -rf "$profile"
}

# One page at one width, in dark (0) or light (1).
check() {
  local page=$1 width=$2 scheme=$3 name result height
  name=$page-$width-$([ "$scheme" = 1 ] && echo light || echo dark)
  local look=(--blink-settings="preferredColorScheme=$scheme")
  browser "${look[@]}" --window-size="$width,1200" --virtual-time-budget=60000 --dump-dom "file://$work/$page-axe.html" \
    > "$work/$name.dom" 2> "$work/$name.log"
  result=$(sed -n '/id="axe-result"/,/END/p' "$work/$name.dom" | sed 's/.*id="axe-result">//; s/END.*//')
  [ -n "$result" ] || result="FOUND no result of axe"
  # The page as it is, with its policy; without pictures once is enough.
  if [ -z "$out" ] && [ "$width$scheme" != 3901 ]; then
    echo "$name: $result" > "$work/$name.result"
    return
  fi
  height=$(grep -o 'page height [0-9]*' <<< "$result" | head -n 1 | tr -dc 0-9)
  local take=(--dump-dom)
  [ -z "$out" ] || take=(--screenshot="$out/$name.png" --window-size="$width,$((height < 16000 ? height : 16000))")
  browser "${look[@]}" --window-size="$width,1200" "${take[@]}" "file://$work/pages/$page.html" > /dev/null 2> "$work/$name.log"
  if grep CONSOLE "$work/$name.log" > "$work/$name.said"; then result+=$'\n'"FOUND on the console: $(cat "$work/$name.said")"; fi
  echo "$name: $result" > "$work/$name.result"
}

[ -z "$out" ] || mkdir -p "$out"
for page in report rank; do
  python3 "$work/inject.py" "$work/pages/$page.html" "$AXE" "$work/$page-axe.html"
  for width in 390 820 1440; do
    for scheme in 1 0; do check "$page" "$width" "$scheme" & done
    wait
  done
done
[ -z "$out" ] || browser --no-pdf-header-footer --print-to-pdf="$out/report.pdf" "file://$work/pages/report.html" > /dev/null 2>&1
cat "$work"/*.result
! grep -q FOUND "$work"/*.result
