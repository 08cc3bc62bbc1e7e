#!/bin/bash
# Checks the HTML report and the ranking page with axe-core in a headless Chromium, at three widths, in light and dark, and saves
# screenshots of whole pages.
#
#   scoring/tests/accessibility.sh CLUSTERMAX RESULTS [OUT]
#
# CLUSTERMAX is the built program, RESULTS a results folder, OUT (default: a temporary folder) gets the pictures.
# Needs chromium and npm; npm installs axe-core (MPL-2.0) into a temporary folder, nothing of it is shipped.
# Exit code: 0 no violation, 1 violations (each is printed), 3 a needed program is missing.
set -euo pipefail

for need in chromium npm python3; do
  command -v "$need" > /dev/null || { echo "accessibility.sh: $need is not installed; install it and run again" >&2; exit 3; }
done
[ $# -ge 2 ] || { echo "usage: accessibility.sh CLUSTERMAX RESULTS [OUT]" >&2; exit 2; }
program=$1 results=$2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
out=${3:-$work/pictures}
mkdir -p "$out" "$work/pages"
axe=${AXE:-$work/node_modules/axe-core/axe.min.js}
[ -f "$axe" ] || npm install --prefix "$work" --silent --no-audit --no-fund axe-core@4

# 1 is "measured and not rated": there is a report all the same.
"$program" score "$results" --out "$work/pages" > /dev/null || [ $? -eq 1 ]
mkdir -p "$work/peer"
sed 's/"run": "/"run": "peer-/' "$work/pages/score.json" > "$work/peer/score.json"
"$program" rank "$work/pages" "$work/peer" --html "$work/pages/rank.html" > /dev/null

# The page's own policy forbids every script, so the checker goes into a copy without that line.
cat > "$work/inject.py" <<'PY'
import re, sys
page, axe, out = sys.argv[1:]
text = re.sub(r'<meta http-equiv="Content-Security-Policy"[^>]*>\n', "", open(page).read())
script = """
axe.run(document).then(found => {
  const rows = found.violations.map(one => one.id + " (" + one.impact + "): " + one.help + ": "
    + one.nodes.slice(0, 5).map(node => node.target.join(" ")).join(" | "));
  const result = document.createElement("pre");
  result.id = "axe-result";
  result.textContent = found.passes.length + " rules passed, page height " + document.documentElement.scrollHeight + "\\n" + rows.map(row => "VIOLATION " + row + "\\n").join("") + "END";
  document.body.replaceChildren(result);
});
"""
text = text.replace("</body>", "<script>" + open(axe).read() + "</script><script>" + script + "</script></body>")
open(out, "w").write(text)
PY
browser=(chromium --headless --no-sandbox --disable-gpu --hide-scrollbars --user-data-dir="$work/profile")
bad=0
for page in report rank; do
  python3 "$work/inject.py" "$work/pages/$page.html" "$axe" "$work/$page-axe.html"
  # 0 is dark, 1 light.
  for width in 390 1280 1920; do for scheme in 1 0; do
    name=$page-$width-$([ $scheme = 1 ] && echo light || echo dark)
    look=(--window-size="$width,1200" --blink-settings="preferredColorScheme=$scheme")
    "${browser[@]}" "${look[@]}" --enable-logging=stderr --virtual-time-budget=60000 --dump-dom "file://$work/$page-axe.html" \
      > "$work/dom" 2> "$work/log"
    result=$(sed -n '/id="axe-result"/,/END/p' "$work/dom" | sed 's/.*id="axe-result">//; s/END.*//')
    [ -n "$result" ] || { echo "$name: axe gave no result"; bad=1; continue; }
    echo "$name: $result"
    case $result in *VIOLATION*) bad=1 ;; esac
    height=$(grep -o 'page height [0-9]*' <<< "$result" | tail -n 1 | tr -dc 0-9)
    "${browser[@]}" --window-size="$width,$height" --blink-settings="preferredColorScheme=$scheme" --enable-logging=stderr \
      --screenshot="$out/$name.png" "file://$work/pages/$page.html" > /dev/null 2> "$work/log"
    if grep CONSOLE "$work/log"; then echo "$name: messages on the console"; bad=1; fi
  done; done
done
exit $bad
