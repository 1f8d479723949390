"""The style of a report: light and dark by the reader's system, one column on a phone."""

STYLE = """
:root{color-scheme:light dark;--page:#f6f7f9;--card:#fff;--ink:#1c2330;--soft:#5b6678;
--rule:#e3e7ee;
--accent:#2f6fb2;--good:#1f7a44;--bad:#b3361f;--shade:#e9edf3;--s0:#4c78a8;--s1:#9ecae9;
--s2:#f58518;
--s3:#e0ac5c;--s4:#3f9a4e;--s5:#e45756;--s6:#a66fa0}
@media(prefers-color-scheme:dark){:root{--page:#12161d;--card:#1b212b;--ink:#e6eaf1;--soft:#9aa6b8;
--rule:#2c3542;--accent:#6aa9e9;--good:#5cc586;--bad:#f08a72;--shade:#262e3a;--s0:#5f93cc;
--s1:#a9d3f0;
--s2:#f79a3e;--s3:#ffd08a;--s4:#63b970;--s5:#ee7a79;--s6:#c594c0}}
*{box-sizing:border-box}
body{margin:0;background:var(--page);color:var(--ink);font:15px/1.5 system-ui,-apple-system,
"Segoe UI",
Roboto,"Helvetica Neue",Arial,sans-serif;-webkit-text-size-adjust:100%}
main{max-width:1060px;margin:0 auto;padding:28px 20px 60px}
h1{font-size:26px;line-height:1.2;margin:0 0 4px;overflow-wrap:anywhere}
h2{font-size:18px;margin:0 0 14px}
h3{font-size:14px;margin:22px 0 8px;color:var(--soft);font-weight:600}
.under{color:var(--soft);margin:0;overflow-wrap:anywhere}
.state{display:inline-block;font-size:13px;font-weight:600;padding:2px 10px;border-radius:12px;
background:var(--shade);color:var(--good);vertical-align:4px;margin-left:8px}
.state.bad{color:var(--bad)}
.tiles{display:grid;grid-template-columns:repeat(auto-fit,minmax(128px,1fr));gap:12px;
margin:22px 0}
.tile,section{background:var(--card);border:1px solid var(--rule);border-radius:10px}
.tile{padding:12px 14px}
.tile b{display:block;font-size:22px;line-height:1.25;font-weight:650;
font-variant-numeric:tabular-nums}
.tile span{color:var(--soft);font-size:13px}
.tile i{display:block;font-style:normal;font-size:13px;color:var(--soft)}
section{padding:20px 22px;margin:0 0 16px}
.pair{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,400px),1fr));gap:4px 28px}
.scroll,.chart{overflow-x:auto}.wide svg{min-width:640px}
table{border-collapse:collapse;width:100%;font-variant-numeric:tabular-nums;font-size:14px}
th,td{text-align:left;padding:6px 12px 6px 0;border-bottom:1px solid var(--rule);
vertical-align:top}
th{color:var(--soft);font-weight:600}
thead th{font-size:13px}
td.n,th.n{text-align:right;white-space:nowrap}
tr:last-child>*{border-bottom:0}
td{overflow-wrap:anywhere}
table.facts th{width:34%;white-space:nowrap;font-weight:400}
code{font:13px ui-monospace,SFMono-Regular,Menlo,Consolas,monospace}
svg{display:block;width:100%;min-width:330px;height:auto;font:12px system-ui,sans-serif;
font-size:12px}
svg text{fill:var(--soft)}svg .label{font-size:12px}
.grid{stroke:var(--rule)}.tick{stroke:var(--soft)}
.bar{fill:var(--accent);stroke:var(--card);stroke-width:.6}
.baseline{fill:none;stroke:var(--ink);stroke-width:1.5}
.mean{fill:none;stroke:var(--ink);stroke-width:1.2;stroke-dasharray:5 4}
.startup{fill:var(--shade)}
.dot{fill:var(--accent)}.dot2{fill:none;stroke:var(--ink);stroke-width:1.5}
.s0{fill:var(--s0)}.s1{fill:var(--s1)}.s2{fill:var(--s2)}.s3{fill:var(--s3)}.s4{fill:var(--s4)}
.s5{fill:var(--s5)}.s6{fill:var(--s6)}
.legend{display:flex;flex-wrap:wrap;gap:4px 16px;color:var(--soft);font-size:13px;margin:6px 0 0}
.legend svg{display:inline-block;width:12px;min-width:12px;height:12px;margin-right:6px;
vertical-align:-1px}
.better{color:var(--good)}.worse{color:var(--bad)}
.note{color:var(--soft);font-size:14px;margin:8px 0 0}
.meter{display:block;height:6px;border-radius:3px;background:var(--shade);min-width:80px;margin-top:8px}
.meter i{display:block;height:6px;border-radius:3px;background:var(--accent)}
footer{color:var(--soft);font-size:13px;margin-top:22px}
@media(max-width:560px){main{padding:18px 12px 40px}section{padding:16px 14px}h1{font-size:22px}
.tiles{grid-template-columns:1fr 1fr;gap:8px}.tile b{font-size:19px}table.facts th{
white-space:normal}}
@media print{body{background:#fff}section,.tile{break-inside:avoid}}
"""
