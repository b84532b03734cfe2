#!/bin/sh
# Opens the pages in a headless browser: each must draw itself, without a console message, and in good time.
#   browser_test.sh CHROMIUM PAGES_PROGRAM DIR
set -eu
chromium=$1 pages=$2 dir=$3
rm -rf "$dir"
mkdir -p "$dir"
"$pages" "$dir"
for page in compare measured kernels large; do
  "$chromium" --headless --no-sandbox --disable-gpu --user-data-dir="$dir/profile" --enable-logging=stderr --v=0 \
    --window-size=1400,900 --virtual-time-budget=10000 --screenshot="$dir/$page.png" --dump-dom "file://$dir/$page.html" \
    >"$dir/$page.dom" 2>"$dir/$page.log"
  if grep -q CONSOLE "$dir/$page.log"; then
    echo "$page: the page wrote to the console:"
    grep CONSOLE "$dir/$page.log"
    exit 1
  fi
  grep -q 'data-ready="1"' "$dir/$page.dom" || { echo "$page: did not draw itself"; exit 1; }
  [ -s "$dir/$page.png" ] || { echo "$page: no screenshot"; exit 1; }
  echo "$page: drawn in $(sed -n 's/.*data-draw-ms="\([0-9.]*\)".*/\1/p' "$dir/$page.dom" | head -1) ms"
done
