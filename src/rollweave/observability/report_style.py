"""The report's style and its one small script, inlined so that the page is a single file that works offline."""

from __future__ import annotations

VARIABLES = """
:root{--page:#f6f7f9;--surface:#fff;--ink:#1a1d21;--muted:#667079;--line:#e3e6ea;--soft:#eef1f4;
--s0:#b4bbc3;--s1:#2a78d6;--s2:#16a37a;--s3:#e8642c;--s4:#6a52c8;--s5:#d99a00;--s6:#c2478f;--s7:#4aa3b5;--good:#117a4b;--bad:#c0362c;--warn:#8a6100}
@media (prefers-color-scheme:dark){:root{--page:#101316;--surface:#181c20;--ink:#e8eaed;--muted:#99a3ad;--line:#2a3036;
--soft:#21262c;--s0:#59626b;--s1:#5b9cf0;--s2:#2fbf92;--s3:#f0854f;--s4:#a191f2;--s5:#e0ab2e;--s6:#e07cb8;--s7:#6cc0d0;--good:#4cc38a;--bad:#f2776c;
--warn:#e0b252}}
"""

CHART_CSS = """
svg.chart{font-family:system-ui,-apple-system,"Segoe UI",Roboto,sans-serif}
.grid{stroke:var(--line);stroke-width:1}
.tick{fill:var(--muted);font-size:11px}
.line{fill:none;stroke-width:2;stroke-linejoin:round;stroke-linecap:round}
.faint{stroke-width:1;opacity:.35}
.dot{stroke:var(--surface);stroke-width:2}
.rule{stroke:var(--muted);stroke-dasharray:4 4}
"""

PAGE_CSS = """
*{box-sizing:border-box}
body{margin:0;background:var(--page);color:var(--ink);
font:15px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,sans-serif}
main{max-width:1220px;margin:0 auto;padding:32px 20px 64px}
h1{font-size:26px;margin:0;letter-spacing:-.01em}
h2{font-size:17px;margin:36px 0 12px}
header{display:flex;flex-wrap:wrap;gap:6px 14px;align-items:center;margin-bottom:20px}
header .sub{flex-basis:100%;color:var(--muted)}
.pill{font-size:13px;padding:2px 10px;border-radius:99px;border:1px solid currentColor}
.good{color:var(--good)}.bad{color:var(--bad)}.warn{color:var(--warn)}
.note{border-left:3px solid var(--warn);background:var(--surface);padding:8px 14px;margin:0 0 16px;
border-radius:0 8px 8px 0}
.tiles{display:grid;grid-template-columns:repeat(6,1fr);gap:12px;margin-bottom:16px}
.tile,.card{background:var(--surface);border:1px solid var(--line);border-radius:10px}
.tile{padding:12px 16px}
.tile .label{color:var(--muted);font-size:13px}
.tile .value{font-size:26px;font-weight:600;letter-spacing:-.01em;font-variant-numeric:tabular-nums}
.tile .more{color:var(--muted);font-size:12.5px}
.charts{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,460px),1fr));gap:16px}
.thirds{grid-template-columns:repeat(auto-fit,minmax(min(100%,300px),1fr));margin-top:16px}
.card{display:flex;flex-direction:column;margin:0;padding:14px 16px 8px;min-width:0}
.card.wide{margin-bottom:16px}
figcaption{display:flex;flex-wrap:wrap;gap:2px 10px;align-items:baseline;margin-bottom:6px}
.hint{color:var(--muted);font-size:13px;font-weight:400}
.legend{margin-left:auto;display:flex;flex-wrap:wrap;gap:0 14px;font-size:13px;color:var(--muted)}
.legend i{display:inline-block;width:10px;height:10px;border-radius:2px;margin-right:5px}
svg.chart{width:100%;height:auto;display:block;margin-top:auto;touch-action:pan-y}
.empty{color:var(--muted);text-align:center;padding:48px 0}
#tip{position:fixed;pointer-events:none;background:var(--surface);border:1px solid var(--line);border-radius:8px;
padding:6px 10px;font-size:13px;box-shadow:0 4px 16px #0003;display:none;z-index:9;font-variant-numeric:tabular-nums}
#tip i{display:inline-block;width:8px;height:8px;border-radius:2px;margin-right:6px}
#tip b{margin-left:10px;float:right}
.cross{stroke:var(--muted);stroke-width:1}
.tables{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,420px),1fr));gap:16px;align-items:start}
table{border-collapse:collapse;width:100%;font-variant-numeric:tabular-nums}
th{text-align:left;font-weight:500;color:var(--muted);font-size:13px}
td,th{padding:5px 8px 5px 0;border-bottom:1px solid var(--line)}
tr:last-child td{border-bottom:0}
td.n,th.n{text-align:right}
.waits td.n,.waits th.n{width:1%;white-space:nowrap;padding-right:16px}
td.bar{width:40%}
td.bar i{display:block;height:8px;border-radius:4px;background:var(--s1);min-width:2px}
details{background:var(--surface);border:1px solid var(--line);border-radius:10px;margin-bottom:10px}
summary{cursor:pointer;padding:10px 16px;display:flex;flex-wrap:wrap;gap:2px 14px;align-items:baseline}
summary::before{content:"▸";color:var(--muted)}
summary::-webkit-details-marker{display:none}
details[open]>summary::before{content:"▾"}
.turn{display:grid;grid-template-columns:64px minmax(0,1fr);gap:4px 12px;padding:10px 16px;
border-top:1px solid var(--line)}
.turn .side{color:var(--muted);font-size:12.5px}
pre{margin:0;white-space:pre-wrap;overflow-wrap:anywhere;
font:13px/1.45 ui-monospace,SFMono-Regular,Menlo,Consolas,monospace}
.turn pre.answer{background:var(--soft);border-left:3px solid var(--s1);padding:4px 10px;
border-radius:0 6px 6px 0;margin-top:6px}
.meta{color:var(--muted);font-size:12.5px;margin-top:3px}
details>pre{padding:12px 16px;border-top:1px solid var(--line)}
footer{color:var(--muted);font-size:13px;margin-top:40px}
@media (max-width:1000px){.tiles{grid-template-columns:repeat(3,1fr)}}
@media (max-width:560px){.tiles{grid-template-columns:repeat(2,1fr)}
.card.wide{overflow-x:auto}.card.wide svg.chart{min-width:560px}}
"""

SCRIPT = """
const tip=document.getElementById('tip');
for(const svg of document.querySelectorAll('svg[data-chart]')){
  const d=JSON.parse(svg.dataset.chart),[l,t,w,h]=d.plot,[a,b]=d.x;
  const steps=[...new Set(d.series.flatMap(s=>s.p.map(p=>p[0])))];
  const cross=document.createElementNS('http://www.w3.org/2000/svg','line');
  cross.setAttribute('class','cross');cross.setAttribute('y1',t);cross.setAttribute('y2',t+h);
  const hide=()=>{tip.style.display='none';cross.remove()};
  svg.addEventListener('pointermove',e=>{
    const box=svg.getBoundingClientRect(),x=(e.clientX-box.left)*svg.viewBox.baseVal.width/box.width;
    const at=b>a?a+(x-l)/w*(b-a):a,step=steps.reduce((p,q)=>Math.abs(q-at)<Math.abs(p-at)?q:p,steps[0]);
    const px=b>a?l+(step-a)/(b-a)*w:l+w/2;
    cross.setAttribute('x1',px);cross.setAttribute('x2',px);svg.append(cross);
    tip.replaceChildren();
    tip.append(Object.assign(document.createElement('div'),{textContent:'step '+step}));
    for(const s of d.series){const p=s.p.find(p=>p[0]===step);if(!p)continue;
      const row=document.createElement('div'),dot=document.createElement('i'),value=document.createElement('b');
      dot.style.background='var(--'+s.c+')';value.textContent=p[1];row.append(dot,s.n,value);tip.append(row)}
    tip.style.display='block';
    tip.style.left=Math.min(e.clientX+14,innerWidth-tip.offsetWidth-8)+'px';
    tip.style.top=Math.min(e.clientY+14,innerHeight-tip.offsetHeight-8)+'px'});
  svg.addEventListener('pointerleave',hide);
}
"""
