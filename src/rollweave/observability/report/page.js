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
