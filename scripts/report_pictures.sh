#!/usr/bin/env bash
# The picture of docs/report.md, of a report page in a window of 1,200 px: scripts/report_pictures.sh REPORT.html
# It needs chromium. The report there is that of
#   python main.py -m +method=lean,exact,plain,local_steps,fedgcn,local dataset_name=cora seed=0,1,2 \
#     num_partitions=3 'num_rounds=[30]' hydra.sweep.dir=outputs/pictures
#   python main.py app=report report.runs=outputs/pictures
set -euo pipefail
page=$(realpath "$1")
cd "$(dirname "$0")/.."
made=$(mktemp -d)
trap 'rm -rf "$made"' EXIT
chromium --headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking \
  --disable-component-update --disable-sync --hide-scrollbars --user-data-dir="$made/chromium" \
  --window-size=1200,5200 --screenshot="$made/page.png" "file://$page"
# Without the empty lines at the end, in 256 colours.
python -c 'import sys; from PIL import Image, ImageOps
page = Image.open(sys.argv[1]).convert("RGB")
height = ImageOps.invert(page).getbbox()[3] + 24
page.crop((0, 0, page.width, height)).quantize(256, Image.Quantize.FASTOCTREE, dither=Image.Dither.NONE).save(sys.argv[2], optimize=True)' \
  "$made/page.png" docs/img/report-1200.png
